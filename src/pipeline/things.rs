//! What a call changes, and what its undo would change: the [things](Thing) that the ledger files them under.

use super::{Form, Write};
use crate::call::Transport;
use crate::contract::operation::Target;
use crate::contract::path::Request;
use crate::contract::thing::Thing;
use crate::contract::undo::Resolved;
use crate::policy::Snapshot;

/// What a call changes, as far as that is known before it is made.
pub fn of_call(write: &Write) -> Vec<Thing> {
    match (&write.form, &write.operation().target) {
        (Form::Http { .. }, Target::Http { template, .. }) => {
            vec![Thing::of_path(template, write.head.path())]
        }
        (Form::Http { .. }, Target::Tool { .. }) => Thing::of_undeclared(write.head.path()),
        (Form::Mcp { call, .. }, _) => {
            let Request::Arguments(arguments) = write.request() else { return Vec::new() };
            write.live.snapshot.things_of_call(call.name(), arguments)
        }
    }
}

/// What a call that follows would change.
pub fn of_resolved(snapshot: &Snapshot, call: &Resolved) -> Vec<Thing> {
    let served = snapshot.operation(&call.operation);
    match (&call.http, served.map(|served| &served.operation.target)) {
        (Some((_, path)), Some(Target::Http { template, .. })) => {
            vec![Thing::of_path(template, path)]
        }
        (Some(_), _) => Vec::new(),
        (None, _) => {
            let tool = call.tool.as_deref().unwrap_or_default();
            snapshot.things_of_undo(tool, &call.arguments)
        }
    }
}

/// What the upstream's own id names. Over HTTP the path says which thing it is; ids of different kinds of
/// things may be equal.
pub fn made(transport: Transport, id: Option<&str>) -> Option<Thing> {
    match transport {
        Transport::Http => None,
        Transport::Mcp => id.map(Thing::of_upstream_id),
    }
}
