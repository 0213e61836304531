//! The HTTP client of a node's API.
use std::time::Duration;

use futures::StreamExt;
use reqwest::{Method, Response, Url};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    exit::{CliError, Exit},
    sse::EventReader,
};
use crate::api::types::ErrorBody;

/// A node on this machine or in this house is there at once or not at all.
const CONNECT: Duration = Duration::from_secs(5);
/// Questions that need no work of a tool.
const ANSWER: Duration = Duration::from_secs(30);
/// No answer is larger; what is belongs into a file.
const ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Speaks to one node.
#[derive(Debug)]
pub struct Client {
    base: Url,
    token: Option<String>,
    http: reqwest::Client,
}

/// `ADDR:PORT` or a URL as the URL to connect to; the unspecified address means this machine.
///
/// # Errors
/// A usage error.
pub fn base_url(text: &str) -> Result<Url, CliError> {
    let wrong =
        |why: &str| CliError::usage(format!("--api {text:?}: {why}; it is ADDR:PORT or http://ADDR:PORT"));
    if text.starts_with("https://") {
        return Err(wrong("a node speaks HTTP, put a proxy with TLS in front of both ends"));
    }
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    if bare.contains(['/', '?', '#', '@']) {
        return Err(wrong("too much in it"));
    }
    let mut url = Url::parse(&format!("http://{bare}")).map_err(|e| wrong(&e.to_string()))?;
    let here = match url.host_str() {
        Some("0.0.0.0") => Some("127.0.0.1"),
        Some("[::]") => Some("[::1]"),
        Some(_) => None,
        None => return Err(wrong("no address in it")),
    };
    if here.is_some() {
        url.set_host(here).map_err(|e| wrong(&e.to_string()))?;
    }
    Ok(url)
}

impl Client {
    /// For the node at `base`.
    ///
    /// # Errors
    /// When the HTTP client can't be made.
    pub fn new(base: Url, token: Option<String>) -> Result<Self, CliError> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            // A proxy of the environment has no business between a command and its node.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| CliError::failed(format!("no HTTP client: {e}")))?;
        Ok(Self { base, token, http })
    }

    /// Where it connects to, without the slash at the end.
    #[must_use]
    pub fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// The URL of a path given as its parts, which may contain anything.
    fn url(&self, parts: &[&str], query: &[(&str, String)]) -> Result<Url, CliError> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| CliError::failed("the API's URL takes no path"))?
            .clear()
            .extend(parts);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    /// A request without a limit of time, for what takes as long as its bytes take.
    pub(super) fn request(
        &self,
        method: Method,
        parts: &[String],
        query: &[(&str, String)],
    ) -> Result<reqwest::RequestBuilder, CliError> {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(self.http.request(method, self.url(&parts, query)?))
    }

    pub(super) async fn send(&self, request: reqwest::RequestBuilder) -> Result<Response, CliError> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().await.map_err(|e| self.unreachable(&e))
    }

    fn unreachable(&self, error: &reqwest::Error) -> CliError {
        if error.is_timeout() && !error.is_connect() {
            return CliError::failed(format!("the node at {} did not answer in time", self.address()));
        }
        CliError::new(Exit::NotRunning, "not_running", format!("no node answers at {}", self.address()))
            .hint("start it with `octomesh up`")
    }

    /// `GET`.
    ///
    /// # Errors
    /// The node's, or that none answers.
    pub async fn get<T: DeserializeOwned>(&self, parts: &[&str]) -> Result<T, CliError> {
        self.query(parts, &[]).await
    }

    /// `GET` with a query.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn query<T: DeserializeOwned>(
        &self,
        parts: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, CliError> {
        let request = self.http.get(self.url(parts, query)?).timeout(ANSWER);
        answer(self.send(request).await?).await
    }

    /// `POST`. `patient` is for what takes as long as a tool takes.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post<T: DeserializeOwned>(
        &self,
        parts: &[&str],
        body: &impl Serialize,
        patient: bool,
    ) -> Result<T, CliError> {
        let mut request = self.http.post(self.url(parts, &[])?).json(body);
        if !patient {
            request = request.timeout(ANSWER);
        }
        answer(self.send(request).await?).await
    }

    /// `DELETE`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn delete<T: DeserializeOwned>(&self, parts: &[&str]) -> Result<T, CliError> {
        let request = self.http.request(Method::DELETE, self.url(parts, &[])?).timeout(ANSWER);
        answer(self.send(request).await?).await
    }

    /// The events of a run after number `after`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn events(&self, run: &str, after: u64) -> Result<EventReader, CliError> {
        let url = self.url(&["api", "runs", run, "events"], &[])?;
        let response = self.send(self.http.get(url).header("last-event-id", after)).await?;
        if response.status().is_success() {
            return Ok(EventReader::new(response));
        }
        Err(refusal(response).await)
    }

    /// Whether a node lives there; needs no token.
    pub async fn is_alive(&self) -> bool {
        let Ok(url) = self.url(&["healthz"], &[]) else { return false };
        matches!(self.http.get(url).timeout(CONNECT).send().await, Ok(response) if response.status().is_success())
    }
}

async fn read(response: Response) -> Result<Vec<u8>, CliError> {
    let (mut stream, mut bytes) = (response.bytes_stream(), Vec::new());
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|e| CliError::failed(format!("the node's answer broke off: {e}")))?;
        if bytes.len() + chunk.len() > ANSWER_BYTES {
            return Err(CliError::failed("the node's answer is too large"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

async fn answer<T: DeserializeOwned>(response: Response) -> Result<T, CliError> {
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    let bytes = read(response).await?;
    serde_json::from_slice(&bytes).map_err(|e| {
        CliError::failed(format!("the node's answer is not understood: {e}")).hint("is it another version?")
    })
}

pub(super) async fn refusal(response: Response) -> CliError {
    let status = response.status().as_u16();
    let bytes = match read(response).await {
        Ok(bytes) => bytes,
        Err(error) => return error,
    };
    let body = serde_json::from_slice::<Value>(&bytes)
        .ok()
        .and_then(|mut document| serde_json::from_value::<ErrorBody>(document.get_mut("error")?.take()).ok());
    match body {
        Some(body) => CliError::from_node(status, body),
        None => CliError::failed(format!("something that is no node answered with HTTP status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (text, url) in [
            ("127.0.0.1:9480", "http://127.0.0.1:9480/"),
            ("http://attic.lan:9480/", "http://attic.lan:9480/"),
            ("0.0.0.0:9480", "http://127.0.0.1:9480/"),
            ("[::]:9480", "http://[::1]:9480/"),
        ] {
            assert_eq!(base_url(text).unwrap().as_str(), url);
        }
        for bad in ["https://a:1", "", "http://", "a:1/b", "user@a:1", "a b"] {
            assert_eq!(base_url(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        let client = Client::new(base_url("a:1").unwrap(), None).unwrap();
        let url = client.url(&["api", "tools", "../a b?"], &[("search", "x&y".into())]).unwrap();
        assert_eq!(url.as_str(), "http://a:1/api/tools/..%2Fa%20b%3F?search=x%26y");
    }
}
