//! The operation that a call is which no policy declares (contract section 1).

use super::class::{Class, IsError, Kind, Level, Mode, OnUnknown, Repeat, ResponseSource};
use super::key::{Carrier, Digest, OperationId};
use super::operation::{Allow, BodyType, Operation, Target, Timeouts, Verification};
use super::status::Statuses;

impl Operation {
    /// The stand-in for undeclared calls of a class: nothing is known, so nothing is offered, and a
    /// write needs the given confirmation. Its fingerprint holds class and level, so that a
    /// confirmation does not survive a stricter rule.
    pub fn undeclared(class: Class, confirm: Level, mode: Mode) -> Self {
        let is_write = class.is_write();
        let mut fingerprint = [0; 32];
        for (place, byte) in fingerprint
            .iter_mut()
            .zip(["undeclared:", class.as_str(), ":", confirm.as_str()].concat().bytes())
        {
            *place = byte;
        }
        Self {
            id: OperationId::undeclared(),
            target: Target::Tool { name: "".into() },
            conditions: Vec::new(),
            class,
            kind: if is_write { Kind::Mutation } else { Kind::Read },
            destructive: false,
            confirm: if is_write { confirm } else { Level::None },
            confirm_argument: None,
            repeat: match class {
                Class::Read | Class::Reversible => Repeat::Allow,
                Class::Compensable | Class::Irreversible => Repeat::Confirm,
            },
            on_unknown: OnUnknown::Challenge,
            mode,
            response: ResponseSource::Json,
            is_error: IsError::Ambiguous,
            rejected_if: Vec::new(),
            inverse: None,
            compensate: None,
            lookup: None,
            draft: None,
            carrier: Carrier::unsupported(),
            statuses: if is_write { Statuses::for_write() } else { Statuses::for_read() },
            upstream_id: None,
            verification: Verification::None,
            before: None,
            sensitive: Vec::new(),
            vary_on: Vec::new(),
            allow: Allow::default(),
            timeouts: Timeouts::default(),
            max_body_bytes: None,
            body_type: BodyType::Json,
            fingerprint: Digest(fingerprint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undeclared_write_is_irreversible_and_offers_nothing() {
        let write = Operation::undeclared(Class::Irreversible, Level::Challenge, Mode::Enforce);
        let stricter = Operation::undeclared(Class::Irreversible, Level::Human, Mode::Enforce);

        assert_eq!(write.confirm, Level::Challenge);
        assert!(!write.reads_answer());
        assert_ne!(write.fingerprint, stricter.fingerprint);
        assert_eq!(
            Operation::undeclared(Class::Read, Level::Human, Mode::Enforce).confirm,
            Level::None
        );
    }
}
