//! The routes that decide: body to requests, decisions to an answer.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tollgate::Cost;
use tollgate_engine::rules::LimitText;
use tollgate_engine::{
    Decision, EngineError, Entry, Item as Asked, Lent, Receipt, Request, RequestError, SentLimits, Store,
};
use tollgate_http::Styles;
use tollgate_http::headers::add_decision;

use super::problem::Problem;
use super::serve::{Answer, respond};
use super::translate::{Basis, Tells, basis, write_decision};
use super::wire::{Body, Item, ReceiptField};
use super::{explain, memo};
use crate::app::{App, Verb};
use crate::control::auth::{Access, Denied, Place};
use crate::control::model::Role;
use crate::net::accept::Protocol;
use crate::ops::acquire::MAX_WAIT;

const JSON: &str = "application/json";

/// `POST /v1/check` and the other verbs that end in a decision.
///
/// # Errors
/// What is wrong with the body. What is wrong with one request of a batch is told in its place.
pub(super) async fn decide<S: Store>(app: &App<S>, verb: Verb, body: &[u8]) -> Result<Answer, Problem> {
    let body = Body::parse(body).map_err(|error| Problem::json(&error))?;
    match &body {
        Body::One(item) => decide_one(app, verb, item).await,
        Body::Many(items) => Ok(decide_many(app, verb, items).await),
    }
}

/// `POST /v1/acquire`: a check that waits, with the answer and a receipt when it is let in or the time is over.
///
/// # Errors
/// What is wrong with the body.
pub(super) async fn acquire<S: Store>(app: &App<S>, body: &[u8]) -> Result<Answer, Problem> {
    let body = Body::parse(body).map_err(|error| Problem::json(&error))?;
    let Body::One(item) = &body else {
        return Err(Problem::bad_request("a list cannot be waited for; send one request at a time"));
    };
    let wait = item.wait_ms.map(Duration::from_millis).filter(|wait| *wait <= MAX_WAIT).ok_or_else(|| {
        let most = MAX_WAIT.as_millis();
        Problem::bad_request(format!("say how long to wait with `wait_ms`, at most {most}")).at("/wait_ms")
    })?;
    let question = Question::new(app, Verb::Reserve, item, "")?;
    let asked = [question.asked()];
    let request = Request { domain: question.domain(), items: &asked };
    let mut decisions = Lent::take();
    app.acquire(Protocol::Http, &request, wait, &mut decisions).await;
    tell(&decisions.get(0).map_err(|error| refused(&error, ""))?, Verb::Reserve, item)
}

/// One decision as an answer.
fn tell(decision: &Decision<'_>, verb: Verb, item: &Item<'_>) -> Result<Answer, Problem> {
    let mut out = Vec::with_capacity(256);
    write_decision(&mut out, decision, tells(verb, item));
    let mut answer = respond(status(decision), JSON, out);
    add_decision(answer.headers_mut(), Styles::IETF, decision);
    Ok(answer)
}

async fn decide_one<S: Store>(app: &App<S>, verb: Verb, item: &Item<'_>) -> Result<Answer, Problem> {
    let question = Question::at_once(app, verb, item, "")?;
    let asked = [question.asked()];
    let requests = [Request { domain: question.domain(), items: &asked }];
    let mut decisions = Lent::take();
    app.decide(Protocol::Http, verb, &requests, &mut decisions).await;
    tell(&decisions.get(0).map_err(|error| refused(&error, ""))?, verb, item)
}

async fn decide_many<S: Store>(app: &App<S>, verb: Verb, items: &[Item<'_>]) -> Answer {
    let question = |(place, item)| Question::at_once(app, verb, item, &format!("/{place}"));
    let questions: Vec<Result<Question<'_>, Problem>> = items.iter().enumerate().map(question).collect();
    let asked: Vec<Option<Asked<'_>>> =
        questions.iter().map(|question| question.as_ref().ok().map(Question::asked)).collect();
    let mut requests = Vec::with_capacity(questions.len());
    for (question, asked) in questions.iter().zip(&asked) {
        if let (Ok(question), Some(asked)) = (question, asked) {
            requests.push(Request { domain: question.domain(), items: std::slice::from_ref(asked) });
        }
    }
    let mut decisions = Lent::take();
    app.decide(Protocol::Http, verb, &requests, &mut decisions).await;
    let mut decided = decisions.iter();
    let mut out = Vec::with_capacity(64 + 256 * items.len());
    out.push(b'[');
    for (place, question) in questions.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        let outcome = match question {
            Ok(_) => decided.next().map(|decided| decided.map_err(|error| refused(&error, &format!("/{place}")))),
            Err(problem) => Some(Err(problem.clone())),
        };
        match outcome {
            Some(Ok(decision)) => write_decision(&mut out, &decision, tells(verb, &items[place])),
            Some(Err(problem)) => {
                app.mistaken(Protocol::Http);
                out.extend_from_slice(&problem.to_json());
            }
            // There are as many decisions as requests.
            None => out.extend_from_slice(b"null"),
        }
    }
    out.push(b']');
    respond(StatusCode::OK, JSON, out)
}

/// What is done that is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    /// `POST /v1/refund`, `/v1/cancel` and `/v1/release`: give back what a decision took.
    Refund,
    /// `POST /v1/renew`: hold slots longer.
    Renew,
    /// `POST /v1/commit`: settle a reservation at what it really weighed.
    Commit,
    /// `POST /v1/reset`: forget what was spent.
    Reset,
    /// `POST /v1/explain`: tell why a check would say what it would.
    Explain,
}

/// What is no decision, one after the other.
///
/// # Errors
/// When the request cannot be understood, or the store did not do it. What is wrong with one of a list is told in its
/// place.
pub(super) async fn act<S: Store>(app: &App<S>, access: &Access, act: Act, body: &[u8]) -> Result<Answer, Problem> {
    let body = Body::parse(body).map_err(|error| Problem::json(&error))?;
    let text = match &body {
        Body::One(item) => act_on(app, access, act, item, "").await?,
        Body::Many(items) => {
            let mut texts = Vec::with_capacity(items.len());
            for (place, item) in items.iter().enumerate() {
                let text = act_on(app, access, act, item, &format!("/{place}")).await;
                texts.push(text.unwrap_or_else(|problem| String::from_utf8_lossy(&problem.to_json()).into_owned()));
            }
            format!("[{}]", texts.join(","))
        }
    };
    Ok(respond(StatusCode::OK, JSON, text))
}

async fn act_on<S: Store>(
    app: &App<S>,
    access: &Access,
    act: Act,
    item: &Item<'_>,
    pointer: &str,
) -> Result<String, Problem> {
    match act {
        // Settling is the other half of deciding, and for whoever may decide: a gateway with a slot has to release it.
        Act::Refund => {
            let accepted = app.engine.refund(&receipt(item, pointer)?).await;
            Ok(format!("{{\"refunded\":{}}}", accepted.map_err(|error| failed(&error, pointer))?.get()))
        }
        Act::Renew => {
            let renewed = app.engine.renew(&receipt(item, pointer)?).await;
            Ok(format!("{{\"renewed\":{}}}", renewed.map_err(|error| failed(&error, pointer))?))
        }
        Act::Commit => {
            let (receipt, cost) = (receipt(item, pointer)?, item.cost.map(Cost::new));
            let cost = cost.ok_or_else(|| {
                Problem::bad_request("a commit needs the `cost` that it turned out to be").at(format!("{pointer}/cost"))
            })?;
            let settled = app.engine.commit(&receipt, cost).await.map_err(|error| failed(&error, pointer))?;
            let (refunded, charged, unpaid) = (settled.refunded.get(), settled.charged.get(), settled.unpaid.get());
            Ok(format!("{{\"refunded\":{refunded},\"charged\":{charged},\"unpaid\":{unpaid}}}"))
        }
        Act::Reset => {
            let question = Question::at_once(app, Verb::Check, item, pointer)?;
            let asked = [question.asked()];
            let request = Request { domain: question.domain(), items: &asked };
            let (domain, subject) = question.named();
            let place = domain.map_or(Place::Everywhere, Place::Domain);
            let denied = |denied: Denied| Problem::forbidden(denied.to_string()).at(pointer);
            access.require(Role::Operator, place).map_err(denied)?;
            let counters = app.engine.reset(&request, &mut Lent::take()).await;
            let counters = counters.map_err(|error| failed(&error, pointer))?;
            app.note(access, "key", "reset", domain, &subject);
            Ok(format!("{{\"reset\":{counters}}}"))
        }
        Act::Explain => {
            let question = Question::at_once(app, Verb::Peek, item, pointer)?;
            let told = app.engine.explain(question.domain(), &question.asked(), &mut Lent::take()).await;
            Ok(explain::to_json(&told.map_err(|error| refused(&error, pointer))?).to_string())
        }
    }
}

fn receipt(item: &Item<'_>, pointer: &str) -> Result<Receipt, Problem> {
    let wrong = |detail: String| Problem::bad_request(detail).at(format!("{pointer}/receipt"));
    let Some(ReceiptField::Given(text)) = &item.receipt else {
        return Err(wrong("this needs the `receipt` of a decision; ask for one with \"receipt\":true".into()));
    };
    text.parse().map_err(|error| wrong(format!("{error}; send what a check gave under `receipt`")))
}

/// An item with everything the engine will be asked to look at.
struct Question<'a> {
    basis: Basis<'a>,
    sent: Option<Arc<SentLimits>>,
    cost: Option<Cost>,
}

impl<'a> Question<'a> {
    /// A question that is answered at once.
    fn at_once<S: Store>(app: &App<S>, verb: Verb, item: &'a Item<'a>, pointer: &str) -> Result<Self, Problem> {
        if item.wait_ms.is_some() {
            let detail = "only /v1/acquire waits; here there is no `wait_ms`";
            return Err(Problem::bad_request(detail).at(format!("{pointer}/wait_ms")));
        }
        Self::new(app, verb, item, pointer)
    }

    fn new<S: Store>(app: &App<S>, verb: Verb, item: &'a Item<'a>, pointer: &str) -> Result<Self, Problem> {
        let basis = basis(item, pointer)?;
        let sent = match &basis {
            Basis::Rules { .. } => None,
            Basis::Sent { limit, burst, algorithm, .. } => {
                let text = LimitText { limit, burst: *burst, algorithm: *algorithm };
                Some(memo::limits(&app.engine, &text, pointer)?)
            }
        };
        Ok(Self { basis, sent, cost: verb.weight(item.cost.map(Cost::new)) })
    }

    fn domain(&self) -> &'a [u8] {
        match &self.basis {
            Basis::Rules { domain, .. } => domain.as_bytes(),
            Basis::Sent { .. } => &[],
        }
    }

    /// The domain, and what is counted there, in words for the audit log.
    fn named(&self) -> (Option<&'a str>, String) {
        match &self.basis {
            Basis::Rules { domain, entries } => (Some(domain), words(entries)),
            Basis::Sent { key, .. } => (None, (*key).to_owned()),
        }
    }

    fn asked(&self) -> Asked<'_> {
        let asked = match (&self.basis, &self.sent) {
            (Basis::Rules { entries, .. }, _) => Asked::new(entries),
            (Basis::Sent { key, .. }, Some(limits)) => Asked::sent(*key, limits),
            (Basis::Sent { .. }, None) => Asked::default(),
        };
        Asked { cost: self.cost, ..asked }
    }
}

/// What is known about a request, in words.
pub(crate) fn words(entries: &[Entry<'_>]) -> String {
    let word =
        |entry: &Entry<'_>| format!("{}={}", String::from_utf8_lossy(entry.name), String::from_utf8_lossy(entry.value));
    entries.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// What is told beyond the decision.
fn tells(verb: Verb, item: &Item<'_>) -> Tells {
    let wanted = matches!(item.receipt, Some(ReceiptField::Wanted(true)));
    Tells { taken: verb.tells_taken(), receipt: wanted || verb.tells_receipt() }
}

fn status(decision: &Decision<'_>) -> StatusCode {
    if decision.is_allowed() {
        return StatusCode::OK;
    }
    let of_the_rule = decision.refusal().and_then(|refusal| StatusCode::from_u16(refusal.status?).ok());
    of_the_rule.unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

/// A request that was not decided, as a problem. The one place where such errors become a status.
pub(super) fn refused(error: &RequestError, pointer: &str) -> Problem {
    let member = match error {
        RequestError::UnknownDomain { .. } => "/domain",
        RequestError::TooMany { .. } => "/attributes",
        RequestError::BadLimit { .. } => "/limit",
        RequestError::NoAmount => "/cost",
        RequestError::NoItems => "",
    };
    Problem::bad_request(error.to_string()).at(format!("{pointer}{member}"))
}

/// Something other than a decision that was not done. Its details are for the log: they name the store.
fn failed(error: &EngineError, pointer: &str) -> Problem {
    match error {
        EngineError::Request(error) => refused(error, pointer),
        EngineError::Store(error) => {
            tracing::warn!(%error, "what is no decision was not carried out");
            let detail = "the store did not answer, so it may or may not have been done";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Store unavailable", detail).at(pointer)
        }
    }
}
