//! Reading server-sent events.
use std::pin::Pin;

use futures::{Stream, StreamExt};
use reqwest::Response;

use super::exit::CliError;
use crate::api::types::RunEvent;

/// An event is a plan, a line of progress or an answer; a line over this is something else.
const LINE_BYTES: usize = 4 * 1024 * 1024;

type Chunks = Pin<Box<dyn Stream<Item = reqwest::Result<Vec<u8>>> + Send>>;

/// Events of one run as they arrive.
pub struct EventReader {
    chunks: Chunks,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for EventReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventReader").finish_non_exhaustive()
    }
}

impl EventReader {
    /// Over the body of an answer.
    #[must_use]
    pub fn new(response: Response) -> Self {
        Self { chunks: Box::pin(response.bytes_stream().map(|c| c.map(|b| b.to_vec()))), buffer: Vec::new() }
    }

    /// The next event; `None` at the end of the stream, also when it broke off.
    ///
    /// # Errors
    /// When what comes are no events of a run.
    pub async fn next(&mut self) -> Result<Option<RunEvent>, CliError> {
        loop {
            while let Some(line) = self.take_line() {
                // Number and name are also in the data.
                if let Some(json) = line.strip_prefix(b"data:") {
                    let event = serde_json::from_slice(json).map_err(|e| {
                        CliError::failed(format!("an event of the run is not understood: {e}"))
                    })?;
                    return Ok(Some(event));
                }
            }
            if self.buffer.len() > LINE_BYTES {
                return Err(CliError::failed("an event of the run is too large"));
            }
            match self.chunks.next().await {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(_)) | None => return Ok(None),
            }
        }
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
        while line.pop_if(|byte| matches!(byte, b'\n' | b'\r')).is_some() {}
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(chunks: &[&str]) -> Vec<u64> {
        let chunks: Vec<_> = chunks.iter().map(|c| Ok(c.as_bytes().to_vec())).collect();
        let mut reader = EventReader { chunks: Box::pin(futures::stream::iter(chunks)), buffer: Vec::new() };
        let mut seen = Vec::new();
        while let Ok(Some(event)) = reader.next().await {
            seen.push(event.seq);
        }
        seen
    }

    #[tokio::test]
    async fn lines_in_any_pieces() {
        assert_eq!(
            read(&["id: 1\nda", "ta: {\"seq\":1}", "\r\n\n: ka\n", "data:{\"seq\":2}\n\n"]).await,
            [1, 2]
        );
        assert_eq!(read(&["data: {\"seq\":1}\n\ndata: {\"seq\":2"]).await, [1]);
        assert!(read(&["data: nonsense\n"]).await.is_empty());
    }
}
