//! The commands that the engine is asked about, by name.

use crate::app::Verb;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A decision by rules.
    Decide(Verb),
    /// `CL.THROTTLE`, where its keys are shared with other servers.
    Throttle,
    /// Something else, one at a time.
    Act(Act),
}

/// What is done that is not decided together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Give back what a decision took.
    Refund,
    /// Hold slots longer.
    Renew,
    /// Settle a reservation at what it really weighed.
    Commit,
    /// Take, waiting until there is enough.
    Acquire,
    /// Forget what was spent.
    Reset,
    /// Tell why a check would say what it would.
    Explain,
}

/// The first is what nearly everybody asks for.
const COMMANDS: &[(&str, Asked)] = &[
    ("TG.CHECK", Asked::Decide(Verb::Check)),
    ("CL.THROTTLE", Asked::Throttle),
    ("TG.PEEK", Asked::Decide(Verb::Peek)),
    ("TG.TAKEUPTO", Asked::Decide(Verb::TakeUpTo)),
    ("TG.CHARGE", Asked::Decide(Verb::Charge)),
    ("TG.DRAIN", Asked::Decide(Verb::Drain)),
    ("TG.RESERVE", Asked::Decide(Verb::Reserve)),
    ("TG.ACQUIRE", Asked::Act(Act::Acquire)),
    ("TG.COMMIT", Asked::Act(Act::Commit)),
    // Three words for one thing, after what it is done to: a reservation, a slot, anything.
    ("TG.CANCEL", Asked::Act(Act::Refund)),
    ("TG.RELEASE", Asked::Act(Act::Refund)),
    ("TG.RENEW", Asked::Act(Act::Renew)),
    ("TG.REFUND", Asked::Act(Act::Refund)),
    ("TG.RESET", Asked::Act(Act::Reset)),
    ("TG.EXPLAIN", Asked::Act(Act::Explain)),
];

impl Asked {
    /// The command of this name, if it is one of these.
    pub(super) fn find(name: &[u8]) -> Option<Self> {
        let found = COMMANDS.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
        found.map(|(_, asked)| *asked)
    }

    /// How many words every call of it has, its name included; options follow. None for what takes no options.
    pub(super) const fn words(self) -> Option<usize> {
        match self {
            Self::Throttle => None,
            Self::Decide(Verb::Drain) | Self::Act(Act::Refund | Act::Renew) => Some(2),
            Self::Decide(Verb::Check | Verb::Peek | Verb::Reserve | Verb::TakeUpTo | Verb::Charge)
            | Self::Act(Act::Commit | Act::Reset | Act::Explain) => Some(3),
            Self::Act(Act::Acquire) => Some(4),
        }
    }

    /// Whether asking twice is not the same as asking once.
    pub(super) const fn takes(self) -> bool {
        !matches!(self, Self::Decide(Verb::Peek) | Self::Act(Act::Explain))
    }

    /// How it is decided; none for what is no decision.
    pub(super) const fn verb(self) -> Option<Verb> {
        match self {
            Self::Decide(verb) => Some(verb),
            Self::Throttle => Some(Verb::Check),
            Self::Act(_) => None,
        }
    }
}
