//! Models that servers on this machine have loaded: Ollama, llama.cpp and whatever speaks OpenAI's list. Only servers that the owner named
//! are asked, and only on loopback.
use std::{net::SocketAddr, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::gpu::cut;

const EVERY: Duration = Duration::from_secs(10);
/// A server on this machine answers in milliseconds; one that is busy with a prompt may not.
const ANSWER: Duration = Duration::from_secs(2);
/// An answer is a few kilobytes.
const ANSWER_BYTES: usize = 256 * 1024;
/// Models of one server that are looked at.
const MODELS: usize = 32;

/// A model that can answer now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Model {
    pub(crate) name: String,
    /// All of it, in bytes, where the server tells.
    pub(crate) bytes: Option<u64>,
    /// What of it is on GPUs.
    pub(crate) vram: Option<u64>,
    /// Tokens that it was loaded for; other numbers make some servers load it anew.
    pub(crate) context: Option<u64>,
    /// Questions at once: under way, and as many as there can be.
    pub(crate) slots: Option<(u64, u64)>,
    pub(crate) server: String,
}

#[derive(Deserialize)]
struct OllamaList {
    models: Vec<OllamaModel>,
}

#[derive(Deserialize)]
struct OllamaModel {
    name: String,
    size: Option<u64>,
    size_vram: Option<u64>,
    context_length: Option<u64>,
}

#[derive(Deserialize)]
struct Props {
    total_slots: u64,
    model_alias: Option<String>,
    model_path: Option<String>,
    #[serde(default)]
    default_generation_settings: Value,
}

#[derive(Deserialize)]
struct OpenAiList {
    data: Vec<OpenAiModel>,
}

#[derive(Deserialize)]
struct OpenAiModel {
    id: String,
    max_model_len: Option<u64>,
}

/// Ollama's `GET /api/ps`: loaded ones only; its other lists are what it could load.
fn ollama(answer: &[u8]) -> Option<Vec<Model>> {
    let list: OllamaList = serde_json::from_slice(answer).ok()?;
    let model = |m: OllamaModel| Model {
        name: cut(&m.name),
        bytes: m.size,
        vram: m.size_vram,
        context: m.context_length,
        ..Model::default()
    };
    Some(list.models.into_iter().take(MODELS).map(model).collect())
}

/// llama.cpp's `GET /props`, and `GET /slots` where it is not switched off.
fn llama_cpp(props: &[u8], slots: Option<&[u8]>) -> Option<Vec<Model>> {
    let props: Props = serde_json::from_slice(props).ok()?;
    let file = props.model_path.as_deref().and_then(|path| path.rsplit(['/', '\\']).next());
    let name = props.model_alias.as_deref().filter(|alias| !alias.is_empty()).or(file)?;
    let slots: Option<Vec<Value>> = slots.and_then(|slots| serde_json::from_slice(slots).ok());
    let busy = slots.map(|slots| {
        let busy = slots.iter().filter(|slot| slot.get("is_processing") == Some(&Value::Bool(true))).count();
        (u64::try_from(busy).unwrap_or(u64::MAX), props.total_slots)
    });
    let context = props.default_generation_settings.get("n_ctx").and_then(Value::as_u64);
    Some(vec![Model { name: cut(name), context, slots: busy, ..Model::default() }])
}

/// `GET /v1/models` of vLLM, which serves what it lists.
fn open_ai(answer: &[u8]) -> Option<Vec<Model>> {
    let list: OpenAiList = serde_json::from_slice(answer).ok()?;
    let model = |m: OpenAiModel| Model { name: cut(&m.id), context: m.max_model_len, ..Model::default() };
    Some(list.data.into_iter().take(MODELS).map(model).collect())
}

/// Asks the servers again and again.
pub(crate) struct ModelServers {
    servers: Vec<SocketAddr>,
    http: reqwest::Client,
    out: watch::Sender<Vec<Model>>,
}

impl ModelServers {
    /// Nothing is known yet.
    ///
    /// # Errors
    /// When there is no HTTP client.
    pub(crate) fn new(
        servers: Vec<SocketAddr>,
    ) -> Result<(Self, watch::Receiver<Vec<Model>>), reqwest::Error> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(ANSWER)
            .build()?;
        let (out, reader) = watch::channel(Vec::new());
        Ok((Self { servers, http, out }, reader))
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        if self.servers.is_empty() {
            return;
        }
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.look() => {}
            }
        }
    }

    /// A server that does not answer has nothing loaded, as far as anybody knows.
    async fn look(&self) {
        let asked = self.servers.iter().map(|server| self.ask(*server));
        let found: Vec<Model> = futures::future::join_all(asked).await.into_iter().flatten().collect();
        self.out.send_if_modified(|old| {
            let changed = *old != found;
            *old = found;
            changed
        });
    }

    async fn ask(&self, server: SocketAddr) -> Vec<Model> {
        let found = match self.get(server, "api/ps").await.as_deref().and_then(ollama) {
            Some(found) => found,
            None => match self.get(server, "props").await {
                Some(props) => {
                    let slots = self.get(server, "slots").await;
                    llama_cpp(&props, slots.as_deref()).unwrap_or_default()
                }
                None => self.get(server, "v1/models").await.as_deref().and_then(open_ai).unwrap_or_default(),
            },
        };
        let named = found.into_iter().filter(|m| !m.name.is_empty());
        named.map(|m| Model { server: server.to_string(), ..m }).collect()
    }

    async fn get(&self, server: SocketAddr, path: &str) -> Option<Vec<u8>> {
        let asked = self.http.get(format!("http://{server}/{path}")).send().await;
        let mut answer = match asked {
            Ok(answer) if answer.status().is_success() => answer,
            Ok(_) => return None,
            Err(error) => {
                tracing::debug!(%server, path, %error, "a model server does not answer");
                return None;
            }
        };
        let mut bytes = Vec::new();
        loop {
            match answer.chunk().await {
                Ok(Some(chunk)) if bytes.len() + chunk.len() <= ANSWER_BYTES => {
                    bytes.extend_from_slice(&chunk)
                }
                Ok(None) => return Some(bytes),
                Ok(Some(_)) => {
                    tracing::warn!(%server, path, "a model server's answer is too long");
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%server, path, %error, "a model server's answer broke off");
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use axum::{Router, http::StatusCode, routing::get};

    use super::*;

    const OLLAMA: &str = r#"{"models": [{"name": "llama3.2:3b", "model": "llama3.2:3b", "size": 3462466560,
        "digest": "a8", "details": {"family": "llama"}, "expires_at": "2031-01-01T00:00:00Z", "size_vram": 3462466560,
        "context_length": 4096}, {"name": "bge-m3:latest", "size": 1200000000, "size_vram": 0}]}"#;
    const PROPS: &str = r#"{"default_generation_settings": {"n_ctx": 8192, "params": {}}, "total_slots": 4,
        "model_path": "/models/qwen2.5-7b-q4_k_m.gguf", "chat_template": "…", "build_info": "b6000"}"#;
    const SLOTS: &str = r#"[{"id": 0, "n_ctx": 2048, "is_processing": true}, {"id": 1, "is_processing": false},
        {"id": 2, "is_processing": false}, {"id": 3, "is_processing": true}]"#;
    const VLLM: &str = r#"{"object": "list", "data": [{"id": "Qwen/Qwen2.5-7B-Instruct", "object": "model",
        "owned_by": "vllm", "max_model_len": 32768}]}"#;

    async fn serve(answers: &[(&'static str, String)]) -> SocketAddr {
        let answers: Arc<BTreeMap<&str, String>> = Arc::new(answers.iter().cloned().collect());
        let answer = move |path: axum::http::Uri| {
            let answer = answers.get(path.path()).cloned();
            async move { answer.ok_or(StatusCode::NOT_FOUND) }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Router::new().fallback(get(answer));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, service).await.unwrap() });
        tasks.detach_all();
        address
    }

    async fn seen(servers: Vec<SocketAddr>) -> Vec<Model> {
        let (asker, reader) = ModelServers::new(servers).unwrap();
        asker.look().await;
        reader.borrow().clone()
    }

    #[tokio::test]
    async fn each_server_is_understood() {
        let ollama = serve(&[("/api/ps", OLLAMA.into()), ("/v1/models", VLLM.into())]).await;
        let llama =
            serve(&[("/props", PROPS.into()), ("/slots", SLOTS.into()), ("/v1/models", VLLM.into())]).await;
        let vllm = serve(&[("/v1/models", VLLM.into())]).await;
        let found = seen(vec![ollama, llama, vllm]).await;
        let [first, second, third, fourth] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            (first.name.as_str(), first.bytes, first.vram),
            ("llama3.2:3b", Some(3_462_466_560), Some(3_462_466_560))
        );
        assert_eq!((first.context, first.server.clone()), (Some(4096), ollama.to_string()));
        assert_eq!((second.name.as_str(), second.vram), ("bge-m3:latest", Some(0)));
        assert_eq!(
            (third.name.as_str(), third.slots, third.context),
            ("qwen2.5-7b-q4_k_m.gguf", Some((2, 4)), Some(8192))
        );
        assert_eq!((fourth.name.as_str(), fourth.context), ("Qwen/Qwen2.5-7B-Instruct", Some(32_768)));
    }

    #[tokio::test]
    async fn nonsense_is_nothing_and_what_stops_is_gone() {
        let odd =
            [("/api/ps", "{\"models\": 7}".to_owned()), ("/props", "[]".into()), ("/v1/models", VLLM.into())];
        assert!(seen(vec![serve(&odd).await]).await.is_empty());
        let long = format!("{{\"models\": [], \"x\": \"{}\"}}", "y".repeat(ANSWER_BYTES));
        assert!(seen(vec![serve(&[("/api/ps", long)]).await]).await.is_empty());
        let many: Vec<String> = (0..100).map(|n| format!("{{\"name\": \"m{n}\"}}")).collect();
        let many = format!("{{\"models\": [{}]}}", many.join(","));
        assert_eq!(seen(vec![serve(&[("/api/ps", many)]).await]).await.len(), MODELS);
        // A port at which nobody listens, and one that takes the call and says nothing.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        assert!(seen(vec![silent.local_addr().unwrap(), closed]).await.is_empty());
    }
}
