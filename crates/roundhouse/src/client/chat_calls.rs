//! The requests of `roundhouse chat` beyond sending messages: cancelling, looking around, and the conversation so far.

use api::conversations::{Conversation, Conversations};
use api::engine::{Cancel, TaskMemory, TaskMessage, TaskMessages};
use api::facts::{Fact, Facts};
use api::files::FolderListing;
use api::memory::{KnowledgeResult, KnowledgeResults};
use api::rpc::{GatewayConfig, RpcResult};
use api::{ErrorCode, TaskId};
use reqwest::Url;
use reqwest::header::CONTENT_DISPOSITION;
use serde_json::{Value, json};

use super::{ClientError, Engine, parse};

impl Engine {
    /// Cancels the turn of a task.
    pub(crate) async fn cancel(&self, task_id: &TaskId) -> Result<(), ClientError> {
        let request = self.http.post(self.url_of("/execute/cancel"));
        self.send(request.json(&Cancel { task_id: task_id.clone(), turn_id: None })).await.map(drop)
    }

    /// Returns a conversation; `None` if there is none with this name.
    pub(crate) async fn conversation(&self, task_id: &TaskId) -> Result<Option<Conversation>, ClientError> {
        let url = self.url_with(&["tasks", task_id.as_str(), "conversation"], &[])?;
        match self.send_json(self.http.get(url)).await {
            Err(ClientError::Refused { code: ErrorCode::TaskNotFound, .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns the newest messages of a task, oldest first.
    pub(crate) async fn newest_messages(
        &self,
        task_id: &TaskId,
        limit: u32,
    ) -> Result<Vec<TaskMessage>, ClientError> {
        let url = self.url_with(&["tasks", task_id.as_str()], &[("limit", &limit.to_string())])?;
        let TaskMessages { messages } = self.send_json(self.http.get(url)).await?;
        Ok(messages)
    }

    /// Returns the conversations that changed last. The flag says whether there are more.
    pub(crate) async fn conversations(&self, limit: u32) -> Result<(Vec<Conversation>, bool), ClientError> {
        let url = self.url_with(&["conversations"], &[("limit", &limit.to_string())])?;
        let Conversations { conversations, next } = self.send_json(self.http.get(url)).await?;
        Ok((conversations, next.is_some()))
    }

    /// Returns the working memory of a task; `None` if there is no such task.
    pub(crate) async fn working_memory(&self, task_id: &TaskId) -> Result<Option<TaskMemory>, ClientError> {
        let url = self.url_with(&["tasks", task_id.as_str(), "memory"], &[])?;
        match self.send_json(self.http.get(url)).await {
            Err(ClientError::Refused { code: ErrorCode::TaskNotFound, .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns the facts that were said last, and how many there are in all.
    pub(crate) async fn facts(&self, limit: u32) -> Result<(Vec<Fact>, u64), ClientError> {
        let url = self.url_with(&["memory", "facts"], &[("limit", &limit.to_string())])?;
        let Facts { facts, total } = self.send_json(self.http.get(url)).await?;
        Ok((facts, total))
    }

    /// Searches what is known about the user.
    pub(crate) async fn search_knowledge(&self, query: &str) -> Result<Vec<KnowledgeResult>, ClientError> {
        let request = self.http.post(self.url_of("/memory/knowledge/search"));
        let KnowledgeResults { results } = self.send_json(request.json(&json!({"query": query}))).await?;
        Ok(results)
    }

    /// Returns the active configuration of the models; null if no model can be used.
    pub(crate) async fn gateway_config(&self) -> Result<Value, ClientError> {
        let call = json!({"subsystem": "control", "op": "get_config"});
        let request = self.http.post(self.url_of("/rpc"));
        let RpcResult { result: GatewayConfig { config } } = self.send_json(request.json(&call)).await?;
        Ok(config)
    }

    /// Lists a folder of the workspace; `None` if it is a file. The folder's name is a path with slashes, empty for the
    /// workspace itself.
    pub(crate) async fn list_folder(
        &self,
        folder: &str,
        limit: u32,
    ) -> Result<Option<FolderListing>, ClientError> {
        let names = folder.split('/').filter(|name| !name.is_empty());
        let path: Vec<&str> = std::iter::once("workspace").chain(names).collect();
        let url = self.url_with(&path, &[("format", "json"), ("limit", &limit.to_string())])?;
        let response = self.send(self.http.get(url)).await?;
        // A file is sent as it is, with its name; of a folder there is only the list.
        let is_file = response.headers().contains_key(CONTENT_DISPOSITION);
        if is_file { Ok(None) } else { parse(response).await.map(Some) }
    }

    /// A URL of the engine, with its path and query encoded.
    pub(super) fn url_with(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Url> {
        let invalid = || anyhow::anyhow!("the engine's address is not a URL");
        let mut url = Url::parse(&self.base).map_err(|_| invalid())?;
        url.path_segments_mut().map_err(|()| invalid())?.pop_if_empty().extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }
}
