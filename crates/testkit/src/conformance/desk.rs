//! Where the cases sit and ask.

use std::hash::{BuildHasher, RandomState};

use tollgate_core::{Ask, Cost, Limit, Limits, Nanos, Outcome, Report, Retry, Stamps, Time, Wall, Window};
use tollgate_engine::Store;
use tollgate_engine::store::{Answers, Batch, Charge, Group, StoreError, Verb};

use super::Subject;

/// A store, the numbers it was told, and keys that nobody else has.
pub(super) struct Desk<'s, S> {
    pub(super) subject: &'s mut S,
    book: Book,
    /// Tells this run from every other on the same store.
    name: u64,
}

/// Numbers by id, which is their place.
struct Book(Vec<Limits>);

impl tollgate::ledger::LimitTable for Book {
    fn get(&self, id: u32) -> Option<&Limits> {
        self.0.get(id as usize)
    }
}

/// A question about one key.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) numbers: u32,
    pub(super) key: Vec<u8>,
    pub(super) ask: Ask,
    pub(super) stamps: Option<Stamps>,
    pub(super) earlier: Vec<u32>,
    pub(super) windows: Vec<Window>,
}

impl Question {
    pub(super) fn cost(mut self, cost: u64) -> Self {
        self.ask = Ask::Exactly(Cost::new(cost));
        self
    }

    pub(super) fn ask(mut self, ask: Ask) -> Self {
        self.ask = ask;
        self
    }

    /// The same key, under other numbers.
    pub(super) fn under(mut self, numbers: u32) -> Self {
        self.earlier.insert(0, self.numbers);
        self.numbers = numbers;
        self
    }

    pub(super) fn windows(mut self, windows: &[Window]) -> Self {
        self.windows = windows.to_vec();
        self
    }

    /// Asks back what an answer took.
    pub(super) fn back(mut self, answer: &Told) -> Self {
        self.ask = Ask::Exactly(Cost::new(answer.taken));
        self.stamps = Some(answer.stamps);
        self
    }
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) outcome: Outcome,
    pub(super) taken: u64,
    pub(super) stamps: Stamps,
    pub(super) reports: Vec<Report>,
    pub(super) at: Time<Wall>,
}

impl Told {
    pub(super) fn passed(&self) -> bool {
        self.outcome.is_admitted()
    }

    pub(super) fn remaining(&self) -> Vec<u64> {
        self.reports.iter().map(|report| report.remaining).collect()
    }

    /// How long a refused one has to wait.
    pub(super) fn wait(&self) -> Nanos {
        match self.outcome {
            Outcome::Deny(Retry::After(wait)) => wait,
            Outcome::Allow | Outcome::Delay(_) | Outcome::Deny(Retry::OnRelease | Retry::Never) => {
                panic!("a wait was expected, and not {:?}", self.outcome)
            }
        }
    }
}

impl<'s, S: Subject> Desk<'s, S> {
    pub(super) fn new(subject: &'s mut S) -> Self {
        Self { subject, book: Book(Vec::new()), name: RandomState::new().hash_one("desk") }
    }

    /// Limits to ask under.
    pub(super) fn limits(&mut self, limits: impl IntoIterator<Item = Limit>) -> u32 {
        self.book.0.push(Limits::new(limits).expect("one to eight limits"));
        self.book.0.len() as u32 - 1
    }

    pub(super) fn limit(&mut self, limit: impl Into<Limit>) -> u32 {
        self.limits([limit.into()])
    }

    /// A question about a key, at a cost of 1.
    pub(super) fn question(&self, numbers: u32, key: &str) -> Question {
        let key = [&self.name.to_le_bytes(), key.as_bytes()].concat();
        let ask = Ask::Exactly(Cost::ONE);
        Question { numbers, key, ask, stamps: None, earlier: Vec::new(), windows: Vec::new() }
    }

    /// A question about a key of its own, under one limit.
    pub(super) fn about(&mut self, limit: impl Into<Limit>, key: &str) -> Question {
        let numbers = self.limit(limit);
        self.question(numbers, key)
    }

    pub(super) async fn check(&self, question: &Question) -> Told {
        self.one(Verb::Check, question).await
    }

    pub(super) async fn peek(&self, question: &Question) -> Told {
        self.one(Verb::Peek, question).await
    }

    /// What a refund accepted.
    pub(super) async fn refund(&self, question: &Question) -> u64 {
        self.one(Verb::Refund, question).await.taken
    }

    /// The cost if all leases were still held.
    pub(super) async fn renew(&self, question: &Question) -> u64 {
        self.one(Verb::Renew, question).await.taken
    }

    pub(super) async fn reset(&self, question: &Question) {
        self.one(Verb::Reset, question).await;
    }

    async fn one(&self, verb: Verb, question: &Question) -> Told {
        self.group(verb, std::slice::from_ref(question)).await.swap_remove(0)
    }

    /// One group.
    pub(super) async fn group(&self, verb: Verb, questions: &[Question]) -> Vec<Told> {
        let answers = self.batch(&[(verb, questions)]).await;
        answers.into_iter().next().expect("an answer for the group").expect("a store that answers")
    }

    /// Several groups.
    pub(super) async fn batch(&self, groups: &[(Verb, &[Question])]) -> Vec<Result<Vec<Told>, StoreError>> {
        let charges: Vec<Vec<Charge<'_>>> = groups
            .iter()
            .map(|(_, questions)| questions.iter().map(|question| self.charge(question)).collect())
            .collect();
        let asked: Vec<Group<'_>> =
            groups.iter().zip(&charges).map(|((verb, _), charges)| Group { verb: *verb, charges }).collect();
        let mut answers = Answers::default();
        self.subject.store().run(Batch { numbers: &self.book, groups: &asked }, &mut answers).await;
        assert_eq!(answers.len(), groups.len(), "every group is answered");
        (0..groups.len()).map(|place| self.told(&answers, place, groups[place].1)).collect()
    }

    fn told(&self, answers: &Answers, place: usize, questions: &[Question]) -> Result<Vec<Told>, StoreError> {
        let group = answers.group(place)?;
        assert_eq!(group.charges().len(), questions.len(), "every charge is answered");
        let told = group.charges().iter().zip(questions).map(|(answer, question)| {
            let reports = group.reports(answer).to_vec();
            let limits = self.book.0[question.numbers as usize].as_slice().len();
            assert_eq!(reports.len(), limits, "there is a report for every limit");
            Told {
                outcome: answer.outcome,
                taken: answer.taken.get(),
                stamps: group.stamps(answer),
                reports,
                at: group.at(),
            }
        });
        Ok(told.collect())
    }

    fn charge<'q>(&'q self, question: &'q Question) -> Charge<'q> {
        Charge {
            key: &question.key,
            numbers: question.numbers,
            limits: &self.book.0[question.numbers as usize],
            earlier: &question.earlier,
            ask: question.ask,
            stamps: question.stamps.as_ref(),
            windows: &question.windows,
        }
    }
}
