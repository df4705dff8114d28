//! What `github-mini` knows: one repository with its issues, comments and releases, as pure state.
//!
//! Its two faces, [`super::rest`] and [`super::tools`], change it through the methods here, so a
//! write is the same write whichever way it came. Answers are JSON shaped as GitHub's, with the
//! members that the policies read. Times are left out: no answer here depends on the clock.
//!
//! Limits: [`MAX_ITEMS`] of each resource and [`MAX_KEYS`] remembered answers. It stands for
//! somebody else's service, so it uses nothing of the sidecar: two readers must agree about a
//! call.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

/// The owner of the only repository.
pub(super) const OWNER: &str = "octo";

/// The only repository.
pub(super) const REPOSITORY: &str = "hello";

/// The most issues, comments and releases each.
pub(super) const MAX_ITEMS: usize = 1_000;

/// How many idempotency keys are remembered; the oldest is forgotten first.
pub(super) const MAX_KEYS: usize = 1_000;

const LOGIN: &str = "octo-agent";
const PAGE: &str = "https://github-mini.example/octo/hello";

/// Why a call changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// The resource's limit is reached.
    #[error("github-mini holds as many of these as it may")]
    Full,
    /// An input is missing or wrong.
    #[error("validation failed: {0}")]
    Invalid(&'static str),
    /// There is no such thing.
    #[error("not found")]
    NotFound,
}

/// How often each resource was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    created: u64,
    updated: u64,
    deleted: u64,
}

impl Counts {
    fn to_json(self) -> Value {
        json!({"created": self.created, "updated": self.updated, "deleted": self.deleted})
    }

    fn total(self) -> u64 {
        self.created + self.updated + self.deleted
    }
}

#[derive(Debug)]
struct Issue {
    id: u64,
    title: String,
    body: Option<String>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open,
}

#[derive(Debug)]
struct Comment {
    issue: u64,
    body: String,
}

#[derive(Debug)]
struct Release {
    tag: String,
    name: Option<String>,
    body: Option<String>,
    draft: bool,
}

/// A change of an issue; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IssueChange<'a> {
    pub(super) title: Option<&'a str>,
    pub(super) body: Option<&'a str>,
    pub(super) state: Option<&'a str>,
}

/// A new release, or a change of one; what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReleaseChange<'a> {
    pub(super) tag: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    pub(super) body: Option<&'a str>,
    pub(super) draft: Option<bool>,
}

/// An answer that a key stands for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// `Null` is an answer without a body.
    pub(super) body: Value,
}

/// What is known of a key.
#[derive(Debug, PartialEq)]
pub(super) enum Recall {
    /// It has not been seen.
    First,
    /// The same request came before, and this was its answer.
    Known(Answer),
    /// It was used for another request.
    OtherRequest,
}

struct Remembered {
    key: String,
    request: [u8; 32],
    answer: Answer,
}

/// The whole state.
pub(super) struct World {
    issues: BTreeMap<u64, Issue>,
    comments: BTreeMap<u64, Comment>,
    releases: BTreeMap<u64, Release>,
    next_id: u64,
    issue_counts: Counts,
    comment_counts: Counts,
    release_counts: Counts,
    remembered: VecDeque<Remembered>,
    loses_next_answer: bool,
}

impl World {
    /// The repository with one open issue, number 1.
    pub(super) fn new() -> Self {
        let first = Issue {
            id: 1,
            title: "Greet the world".to_owned(),
            body: Some("It has been quiet.".to_owned()),
            state: State::Open,
        };
        Self {
            issues: BTreeMap::from([(1, first)]),
            comments: BTreeMap::new(),
            releases: BTreeMap::new(),
            next_id: 100,
            issue_counts: Counts::default(),
            comment_counts: Counts::default(),
            release_counts: Counts::default(),
            remembered: VecDeque::new(),
            loses_next_answer: false,
        }
    }

    /// How many effects there have been, of all resources.
    pub(super) fn effects(&self) -> u64 {
        self.issue_counts.total() + self.comment_counts.total() + self.release_counts.total()
    }

    /// `GET /_demo/counts`
    pub(super) fn counts(&self) -> Value {
        json!({
            "comments": self.comment_counts.to_json(),
            "issues": self.issue_counts.to_json(),
            "releases": self.release_counts.to_json(),
        })
    }

    /// The next write is performed and its answer is not given.
    pub(super) fn lose_next_answer(&mut self) {
        self.loses_next_answer = true;
    }

    /// Whether the answer of a call that had an effect is to be lost; asked once per such call.
    pub(super) fn take_loss(&mut self) -> bool {
        std::mem::take(&mut self.loses_next_answer)
    }

    /// What is known of a key. `request` is a hash of what the key was sent with.
    pub(super) fn recall(&self, key: &str, request: &[u8; 32]) -> Recall {
        match self.remembered.iter().find(|known| known.key == key) {
            None => Recall::First,
            Some(known) if known.request == *request => Recall::Known(known.answer.clone()),
            Some(_) => Recall::OtherRequest,
        }
    }

    /// Remembers the answer of a request that had an effect.
    pub(super) fn remember(&mut self, key: &str, request: [u8; 32], answer: Answer) {
        if self.remembered.len() >= MAX_KEYS {
            self.remembered.pop_front();
        }
        self.remembered.push_back(Remembered { key: key.to_owned(), request, answer });
    }

    /// The repository itself.
    pub(super) fn repository(&self) -> Value {
        let open = self.issues.values().filter(|issue| issue.state == State::Open).count();
        json!({
            "id": 1,
            "name": REPOSITORY,
            "full_name": format!("{OWNER}/{REPOSITORY}"),
            "owner": {"login": OWNER},
            "html_url": PAGE,
            "private": false,
            "open_issues_count": open,
        })
    }

    /// All issues, oldest first.
    pub(super) fn issues(&self) -> Value {
        self.issues.iter().map(|(number, issue)| self.issue_json(*number, issue)).collect()
    }

    /// One issue.
    pub(super) fn issue(&self, number: u64) -> Result<Value, Fault> {
        let issue = self.issues.get(&number).ok_or(Fault::NotFound)?;
        Ok(self.issue_json(number, issue))
    }

    /// Opens an issue; the answer's `number` names it.
    pub(super) fn create_issue(&mut self, title: &str, body: Option<&str>) -> Result<Value, Fault> {
        if title.is_empty() {
            return Err(Fault::Invalid("title is empty"));
        }
        has_room(self.issues.len())?;
        let number = self.issues.keys().next_back().map_or(1, |last| last + 1);
        let issue = Issue {
            id: self.take_id(),
            title: title.to_owned(),
            body: body.map(str::to_owned),
            state: State::Open,
        };
        self.issues.insert(number, issue);
        self.issue_counts.created += 1;
        self.issue(number)
    }

    /// Changes an issue.
    pub(super) fn update_issue(
        &mut self,
        number: u64,
        change: IssueChange<'_>,
    ) -> Result<Value, Fault> {
        let state = match change.state {
            None => None,
            Some("closed") => Some(State::Closed),
            Some("open") => Some(State::Open),
            Some(_) => return Err(Fault::Invalid("state is neither open nor closed")),
        };
        if change.title == Some("") {
            return Err(Fault::Invalid("title is empty"));
        }
        let issue = self.issues.get_mut(&number).ok_or(Fault::NotFound)?;
        if let Some(title) = change.title {
            title.clone_into(&mut issue.title);
        }
        if let Some(body) = change.body {
            issue.body = Some(body.to_owned());
        }
        if let Some(state) = state {
            issue.state = state;
        }
        self.issue_counts.updated += 1;
        self.issue(number)
    }

    /// The comments of an issue, oldest first.
    pub(super) fn comments(&self, issue: u64) -> Result<Value, Fault> {
        if !self.issues.contains_key(&issue) {
            return Err(Fault::NotFound);
        }
        let of_issue = self.comments.iter().filter(|(_, comment)| comment.issue == issue);
        Ok(of_issue.map(|(id, comment)| comment_json(*id, comment)).collect())
    }

    /// One comment.
    pub(super) fn comment(&self, id: u64) -> Result<Value, Fault> {
        self.comments.get(&id).map(|comment| comment_json(id, comment)).ok_or(Fault::NotFound)
    }

    /// Comments on an issue; the answer's `id` names the comment.
    pub(super) fn create_comment(&mut self, issue: u64, body: &str) -> Result<Value, Fault> {
        if !self.issues.contains_key(&issue) {
            return Err(Fault::NotFound);
        }
        if body.is_empty() {
            return Err(Fault::Invalid("body is empty"));
        }
        has_room(self.comments.len())?;
        let id = self.take_id();
        self.comments.insert(id, Comment { issue, body: body.to_owned() });
        self.comment_counts.created += 1;
        self.comment(id)
    }

    /// Deletes a comment for good.
    pub(super) fn delete_comment(&mut self, id: u64) -> Result<(), Fault> {
        self.comments.remove(&id).ok_or(Fault::NotFound)?;
        self.comment_counts.deleted += 1;
        Ok(())
    }

    /// One release, draft or not.
    pub(super) fn release(&self, id: u64) -> Result<Value, Fault> {
        self.releases.get(&id).map(|release| release_json(id, release)).ok_or(Fault::NotFound)
    }

    /// The published release of a tag. As at GitHub, drafts are not found by tag.
    pub(super) fn release_by_tag(&self, tag: &str) -> Result<Value, Fault> {
        let mut releases = self.releases.iter();
        let found = releases.find(|(_, release)| !release.draft && release.tag == tag);
        found.map(|(id, release)| release_json(*id, release)).ok_or(Fault::NotFound)
    }

    /// Publishes a release, or drafts it.
    pub(super) fn create_release(&mut self, release: ReleaseChange<'_>) -> Result<Value, Fault> {
        let tag = release.tag.filter(|tag| !tag.is_empty());
        let tag = tag.ok_or(Fault::Invalid("tag_name is missing"))?;
        let draft = release.draft.unwrap_or(false);
        if !draft && self.release_by_tag(tag).is_ok() {
            return Err(Fault::Invalid("tag_name already has a release"));
        }
        has_room(self.releases.len())?;
        let id = self.take_id();
        let release = Release {
            tag: tag.to_owned(),
            name: release.name.map(str::to_owned),
            body: release.body.map(str::to_owned),
            draft,
        };
        self.releases.insert(id, release);
        self.release_counts.created += 1;
        self.release(id)
    }

    /// Changes a release; `draft: false` publishes it.
    pub(super) fn update_release(
        &mut self,
        id: u64,
        change: ReleaseChange<'_>,
    ) -> Result<Value, Fault> {
        let old = self.releases.get(&id).ok_or(Fault::NotFound)?;
        let tag = change.tag.unwrap_or(&old.tag).to_owned();
        let draft = change.draft.unwrap_or(old.draft);
        let is_taken = |(other, release): (&u64, &Release)| {
            *other != id && !release.draft && release.tag == tag
        };
        if tag.is_empty() {
            return Err(Fault::Invalid("tag_name is empty"));
        }
        if !draft && self.releases.iter().any(is_taken) {
            return Err(Fault::Invalid("tag_name already has a release"));
        }
        let release = self.releases.get_mut(&id).ok_or(Fault::NotFound)?;
        release.tag = tag;
        release.draft = draft;
        if let Some(name) = change.name {
            release.name = Some(name.to_owned());
        }
        if let Some(body) = change.body {
            release.body = Some(body.to_owned());
        }
        self.release_counts.updated += 1;
        self.release(id)
    }

    /// Deletes a release for good, draft or not.
    pub(super) fn delete_release(&mut self, id: u64) -> Result<(), Fault> {
        self.releases.remove(&id).ok_or(Fault::NotFound)?;
        self.release_counts.deleted += 1;
        Ok(())
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    fn issue_json(&self, number: u64, issue: &Issue) -> Value {
        let comments = self.comments.values().filter(|comment| comment.issue == number).count();
        json!({
            "id": issue.id,
            "number": number,
            "html_url": format!("{PAGE}/issues/{number}"),
            "state": match issue.state {
                State::Closed => "closed",
                State::Open => "open",
            },
            "title": issue.title,
            "body": issue.body,
            "comments": comments,
            "user": {"login": LOGIN},
        })
    }
}

fn has_room(held: usize) -> Result<(), Fault> {
    if held < MAX_ITEMS { Ok(()) } else { Err(Fault::Full) }
}

fn comment_json(id: u64, comment: &Comment) -> Value {
    json!({
        "id": id,
        "html_url": format!("{PAGE}/issues/{}#issuecomment-{id}", comment.issue),
        "body": comment.body,
        "user": {"login": LOGIN},
    })
}

fn release_json(id: u64, release: &Release) -> Value {
    json!({
        "id": id,
        "html_url": format!("{PAGE}/releases/{id}"),
        "tag_name": release.tag,
        "name": release.name,
        "body": release.body,
        "draft": release.draft,
        "author": {"login": LOGIN},
    })
}
