//! The closed words of an effect: class, kind, level, mode, disposition, outcome, verdict.
//!
//! Each is a small enum with its wire name, so that a word is written in one place.

/// Gives a closed enum its wire names, both ways.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name on the wire, in policy files, the ledger and metrics.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The value with this name; exact, case-sensitive.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == name)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words! {
    /// What can become of an effect afterwards (ADR-0030 section 1). Ordered by severity.
    Class {
        /// Changes nothing.
        Read = "read",
        /// A declared call leaves the world as it was.
        Reversible = "reversible",
        /// A declared call cancels the effect and leaves a trace.
        Compensable = "compensable",
        /// Nothing takes it back.
        Irreversible = "irreversible",
    }
}

impl Class {
    /// Whether calls of this class change something, and so have a ledger entry.
    pub fn is_write(self) -> bool {
        self != Self::Read
    }
}

words! {
    /// What an operation does (EffectSpec `kind`); orthogonal to [`Class`].
    Kind {
        /// Changes nothing.
        Read = "read",
        /// Makes something.
        Create = "create",
        /// Changes something.
        Update = "update",
        /// Removes something.
        Delete = "delete",
        /// Leaves the vendor's own state: a send, a notification, a payment.
        ExternalSideEffect = "external_side_effect",
        /// Some change; the only word that AIR has for it.
        Mutation = "mutation",
    }
}

words! {
    /// The confirmation that a call needs (contract section 4). Ordered by strictness.
    Level {
        /// None.
        None = "none",
        /// The caller's word.
        Caller = "caller",
        /// The token out of the refusal of this very call.
        Challenge = "challenge",
        /// A person's decision.
        Human = "human",
    }
}

words! {
    /// Whether an operation's rules stop calls, or only say what they would have done.
    Mode {
        /// Classify, record and report; stop nothing.
        Observe = "observe",
        /// Stop what the rules stop.
        Enforce = "enforce",
    }
}

words! {
    /// What became of one dispatch.
    Disposition {
        /// Not a byte of it was sent.
        NotSent = "not_sent",
        /// The upstream took it.
        Accepted = "accepted",
        /// The upstream certainly did not do it.
        DefinitelyRejected = "definitely_rejected",
        /// Nobody can say.
        Ambiguous = "ambiguous",
    }
}

words! {
    /// What became of an entry.
    Outcome {
        /// It was done.
        Accepted = "accepted",
        /// It was not done.
        Rejected = "rejected",
        /// Nobody can say until a lookup or a person settles it.
        Unknown = "unknown",
    }
}

impl From<Disposition> for Outcome {
    fn from(disposition: Disposition) -> Self {
        match disposition {
            Disposition::Accepted => Self::Accepted,
            Disposition::DefinitelyRejected | Disposition::NotSent => Self::Rejected,
            Disposition::Ambiguous => Self::Unknown,
        }
    }
}

words! {
    /// What the evidence says of an accepted write (EffectSpec verification).
    Verdict {
        /// Every assertion passed, and there was one.
        Verified = "verified",
        /// An assertion failed.
        Contradicted = "contradicted",
        /// Neither.
        Inconclusive = "inconclusive",
    }
}

words! {
    /// What a repeat of a finished, delivered call without a key of its own does.
    Repeat {
        /// Needs a fresh confirmation that names the earlier entry.
        Confirm = "confirm",
        /// Goes through, and its report names the earlier entry.
        Allow = "allow",
        /// Is refused.
        Refuse = "refuse",
        /// Gets the recorded answer.
        Replay = "replay",
    }
}

words! {
    /// What a repeat of a call does whose answer the agent saw and nobody can read.
    OnUnknown {
        /// Is refused until a lookup or a person settles the entry.
        Refuse = "refuse",
        /// Needs the token of a challenge that names the entry.
        Challenge = "challenge",
        /// Needs a person.
        Human = "human",
    }
}

words! {
    /// How an MCP result with `isError: true` counts.
    IsError {
        /// The tool ran; nobody can say what it did.
        Ambiguous = "ambiguous",
        /// The tool says that it did nothing.
        Rejected = "rejected",
    }
}

words! {
    /// Where an MCP answer's evidence is (contract section 2, Bodies).
    ResponseSource {
        /// `structuredContent`.
        Json = "json",
        /// `structuredContent`, else the JSON in the first text block.
        TextJson = "text_json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ordered_by_severity() {
        assert!(Class::Read < Class::Reversible);
        assert!(Class::Reversible < Class::Compensable);
        assert!(Class::Compensable < Class::Irreversible);
    }

    #[test]
    fn words_read_back_as_themselves() {
        for class in Class::ALL {
            assert_eq!(Class::from_name(class.as_str()), Some(*class));
        }
        assert_eq!(Class::from_name("Read"), None);
        assert_eq!(Level::from_name(""), None);
    }
}
