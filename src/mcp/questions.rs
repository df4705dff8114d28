//! Questions that are put to clients of sessions, and who waits for their answers (standards MCP-36).
//!
//! A client answers with a POST of its own. The id of a question cannot be guessed, is sealed with the
//! ledger's key (`Sealer::question`) so that no upstream's id is taken for one, which may be another
//! sidecar's, and counts in its own session only.
//!
//! A question lives in the process that asked it. An answer that reaches another one of that ledger, or
//! the same after a restart, is taken and forgotten there: it never goes upstream, and no call is made
//! of it. The call
//! that waits is refused when its time is over, with the token that confirms it at any process which
//! shares the ledger.
//!
//! Limits: [`MAX_QUESTIONS`] at once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use super::request::Heard;
use super::sessions::SessionKey;
use crate::contract::json::{Value, write_string};

/// The questions that are open at once.
pub const MAX_QUESTIONS: usize = 1024;

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client answered.
    Heard(Heard),
    /// The client cannot be asked after all.
    Unavailable,
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Questions {
    open: Mutex<HashMap<String, (SessionKey, oneshot::Sender<Outcome>)>>,
}

/// Who waits for an answer; dropping it closes the question.
#[derive(Debug)]
pub struct Asked<'a> {
    questions: &'a Questions,
    id: String,
    answer: oneshot::Receiver<Outcome>,
}

impl Questions {
    /// Opens a question under an id that nobody can guess; `None` if there are too many.
    pub fn ask(&self, session: SessionKey, id: String) -> Option<Asked<'_>> {
        let (sender, answer) = oneshot::channel();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_QUESTIONS {
            return None;
        }
        open.insert(id.clone(), (session, sender));
        Some(Asked { questions: self, id, answer })
    }

    /// A session has ended: nobody will answer in it.
    pub fn end(&self, session: &SessionKey) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let ended: Vec<String> = open
            .iter()
            .filter(|(_, (owner, _))| owner == session)
            .map(|(name, _)| name.clone())
            .collect();
        for name in ended {
            if let Some((_, sender)) = open.remove(&name) {
                let _gone = sender.send(Outcome::Unavailable);
            }
        }
    }

    /// A client's response came, with this id and root. One that nobody waits for is forgotten.
    pub fn hear(&self, session: &SessionKey, name: &str, message: Value<'_>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if !open.get(name).is_some_and(|(owner, _)| owner == session) {
            return;
        }
        let Some((_, sender)) = open.remove(name) else { return };
        drop(open);
        let outcome = match message.get("result") {
            Some(result) => Outcome::Heard(Heard::of(result)),
            None => Outcome::Unavailable,
        };
        let _gone = sender.send(outcome);
    }
}

impl Asked<'_> {
    /// The request to the client.
    pub fn request(&self, message: &str, modes: Modes) -> String {
        let params = params(message, modes);
        let id = &self.id;
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"elicitation/create\",\
             \"params\":{params}}}"
        )
    }

    /// Waits for the answer; `None` if the question was closed.
    ///
    /// Cancel safe.
    pub async fn answer(&mut self) -> Option<Outcome> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.questions.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Whether a revision names the mode of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modes {
    /// 2025-06-18: there are forms only, and no mode is named.
    FormOnly,
    /// Later ones.
    Named,
}

/// The parameters of a form that asks for a confirmation (standards MCP-32).
pub fn params(message: &str, modes: Modes) -> String {
    let mut params = String::from(match modes {
        Modes::FormOnly => "{\"message\":",
        Modes::Named => "{\"mode\":\"form\",\"message\":",
    });
    write_string(message, &mut params);
    params.push_str(
        ",\"requestedSchema\":{\"type\":\"object\",\"properties\":{\"confirm\":{\"type\":\"boolean\",\
         \"title\":\"Confirm this action\",\"default\":false}},\"required\":[\"confirm\"]}}",
    );
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::json::Doc;

    fn answer(id: &str, rest: &str) -> Doc {
        Doc::parse(format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",{rest}}}")).unwrap()
    }

    #[tokio::test]
    async fn mcp_36_only_accept_with_a_true_confirm_confirms_and_only_in_its_session() {
        let cases = [
            (
                r#""result":{"action":"accept","content":{"confirm":true}}"#,
                Outcome::Heard(Heard::Accepted),
            ),
            (
                r#""result":{"action":"accept","content":{"confirm":"true"}}"#,
                Outcome::Heard(Heard::Declined),
            ),
            (r#""result":{"action":"accept"}"#, Outcome::Heard(Heard::Declined)),
            (r#""result":{"action":"decline"}"#, Outcome::Heard(Heard::Declined)),
            (
                r#""result":{"action":"cancel","content":{"confirm":true}}"#,
                Outcome::Heard(Heard::Declined),
            ),
            (r#""error":{"code":-32601,"message":"Method not found"}"#, Outcome::Unavailable),
        ];
        for (rest, expected) in cases {
            let questions = Questions::default();
            let session = SessionKey::new("p", "s");
            let mut asked = questions.ask(session.clone(), "anvil-07".to_owned()).unwrap();
            let doc = answer("anvil-07", rest);
            questions.hear(&SessionKey::new("p", "t"), "anvil-07", doc.root());
            questions.hear(&session, "anvil-00", doc.root());
            questions.hear(&session, "anvil-07", doc.root());
            questions.hear(&session, "anvil-07", doc.root());
            assert_eq!(asked.answer().await, Some(expected), "{rest}");
        }
    }

    #[test]
    fn a_question_that_nobody_waits_for_is_closed() {
        let questions = Questions::default();
        drop(questions.ask(SessionKey::new("p", "s"), "anvil-07".to_owned()));
        assert!(questions.open.lock().unwrap().is_empty());
    }
}
