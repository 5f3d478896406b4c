//! Which path does what.

use hyper::{Method, StatusCode};
use serde::Deserialize;
use tollgate_engine::{Enforcement, Store};

use super::decide::{self, Act};
use super::problem::Problem;
use super::serve::{Answer, respond};
use crate::app::{App, Verb};
use crate::control::api::describe;
use crate::control::auth::{Access, Place};
use crate::control::model::Role;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Route {
    Decide(Verb),
    Acquire,
    Act(Act),
    Enforcement,
    SetEnforcement,
    Health,
    Readiness,
    Metrics,
    Top,
    RulesStatus,
    Description,
}

impl Route {
    /// Whether asking twice is not the same as asking once.
    pub(super) const fn takes(self) -> bool {
        match self {
            Self::Decide(verb) => !matches!(verb, Verb::Peek),
            Self::Act(act) => !matches!(act, Act::Explain),
            Self::Acquire => true,
            Self::Enforcement
            | Self::SetEnforcement
            | Self::Health
            | Self::Readiness
            | Self::Metrics
            | Self::Top
            | Self::RulesStatus
            | Self::Description => false,
        }
    }

    /// Whether it is answered without a token, where tokens are asked for: those who look after the server have none.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Readiness)
    }
}

/// Paths with their methods. The first is what nearly everybody asks for.
const ROUTES: &[(&str, &[(&str, Route)])] = &[
    ("/v1/check", &[("POST", Route::Decide(Verb::Check))]),
    ("/v1/peek", &[("POST", Route::Decide(Verb::Peek))]),
    ("/v1/take-up-to", &[("POST", Route::Decide(Verb::TakeUpTo))]),
    ("/v1/charge", &[("POST", Route::Decide(Verb::Charge))]),
    ("/v1/drain", &[("POST", Route::Decide(Verb::Drain))]),
    ("/v1/acquire", &[("POST", Route::Acquire)]),
    ("/v1/reserve", &[("POST", Route::Decide(Verb::Reserve))]),
    ("/v1/commit", &[("POST", Route::Act(Act::Commit))]),
    // Three words for one thing, after what it is done to: a reservation, a slot, anything.
    ("/v1/cancel", &[("POST", Route::Act(Act::Refund))]),
    ("/v1/release", &[("POST", Route::Act(Act::Refund))]),
    ("/v1/renew", &[("POST", Route::Act(Act::Renew))]),
    ("/v1/refund", &[("POST", Route::Act(Act::Refund))]),
    ("/v1/reset", &[("POST", Route::Act(Act::Reset))]),
    ("/v1/explain", &[("POST", Route::Act(Act::Explain))]),
    ("/v1/enforcement", &[("POST", Route::SetEnforcement), ("GET", Route::Enforcement), ("HEAD", Route::Enforcement)]),
    ("/healthz", &[("GET", Route::Health), ("HEAD", Route::Health)]),
    ("/readyz", &[("GET", Route::Readiness), ("HEAD", Route::Readiness)]),
    ("/v1/top", &[("GET", Route::Top), ("HEAD", Route::Top)]),
    ("/metrics", &[("GET", Route::Metrics), ("HEAD", Route::Metrics)]),
    ("/v1/rules-status", &[("GET", Route::RulesStatus), ("HEAD", Route::RulesStatus)]),
    ("/openapi.json", &[("GET", Route::Description), ("HEAD", Route::Description)]),
];

/// The route of a request.
///
/// # Errors
/// When there is nothing at the path, or not with this method.
pub(super) fn find(method: &Method, path: &str) -> Result<Route, Problem> {
    let Some((_, methods)) = ROUTES.iter().find(|(known, _)| *known == path) else {
        let paths: Vec<&str> = ROUTES.iter().map(|(path, _)| *path).collect();
        let detail = format!("there is nothing here; there is {}", paths.join(", "));
        return Err(Problem::new(StatusCode::NOT_FOUND, "Not found", detail));
    };
    let route = methods.iter().find(|(known, _)| *known == method.as_str());
    route.map(|(_, route)| *route).ok_or_else(|| {
        let methods: Vec<&str> = methods.iter().map(|(method, _)| *method).collect();
        let methods = methods.join(", ");
        let detail = format!("{path} takes {methods}");
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", detail).allowing(methods)
    })
}

/// Answers a request.
///
/// # Errors
/// What is wrong with it.
pub(super) async fn run<S: Store>(app: &App<S>, access: &Access, route: Route, body: &[u8]) -> Result<Answer, Problem> {
    const TEXT: &str = "text/plain; charset=utf-8";
    match route {
        Route::Decide(verb) => decide::decide(app, verb, body).await,
        Route::Acquire => decide::acquire(app, body).await,
        Route::Act(act) => decide::act(app, access, act, body).await,
        Route::Enforcement => Ok(tell_enforcement(app)),
        Route::SetEnforcement => {
            set_enforcement(app, access, body)?;
            Ok(tell_enforcement(app))
        }
        Route::Health => Ok(respond(StatusCode::OK, TEXT, "ok\n")),
        // Ready without its store too; see `observe::health`.
        Route::Readiness => {
            Ok(match (app.connections.is_stopping(), app.health.is_up(), app.metrics.following.is_away()) {
                (true, ..) => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n"),
                (false, true, false) => respond(StatusCode::OK, TEXT, "ready\n"),
                (false, false, false) => respond(StatusCode::OK, TEXT, "ready, without the store\n"),
                (false, true, true) => respond(StatusCode::OK, TEXT, "ready, by the rules last known\n"),
                (false, false, true) => {
                    respond(StatusCode::OK, TEXT, "ready, without the store, by the rules last known\n")
                }
            })
        }
        Route::Top => Ok(respond(StatusCode::OK, "application/json", app.top.to_json().to_string())),
        Route::Metrics => Ok(respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", app.metrics_text())),
        Route::RulesStatus => {
            // A struct of numbers and texts always serialises.
            let status = serde_json::to_vec(&app.origin.status(app.now())).unwrap_or_default();
            Ok(respond(StatusCode::OK, "application/json", status))
        }
        Route::Description => Ok(respond(StatusCode::OK, "application/json", describe::document())),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `mode`")]
struct Switch {
    mode: Mode,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Enforce,
    Observe,
}

fn set_enforcement<S: Store>(app: &App<S>, access: &Access, body: &[u8]) -> Result<(), Problem> {
    // It is the switch of all domains.
    access.require(Role::Operator, Place::Everywhere).map_err(|denied| Problem::forbidden(denied.to_string()))?;
    let switch: Switch = serde_json::from_slice(body).map_err(|error| Problem::json(&error))?;
    let enforcement = match switch.mode {
        Mode::Enforce => Enforcement::Enforce,
        Mode::Observe => Enforcement::Observe,
    };
    app.engine.set_enforcement(enforcement);
    tracing::warn!(mode = enforcement.as_str(), author = access.author(), "enforcement was switched");
    app.note(access, "enforcement", enforcement.as_str(), None, "server");
    Ok(())
}

fn tell_enforcement<S: Store>(app: &App<S>) -> Answer {
    let body = format!("{{\"mode\":\"{}\"}}", app.engine.enforcement().as_str());
    respond(StatusCode::OK, "application/json", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_with_their_methods_only() {
        assert_eq!(find(&Method::POST, "/v1/check"), Ok(Route::Decide(Verb::Check)));
        assert_eq!(find(&Method::HEAD, "/metrics"), Ok(Route::Metrics));
        let wrong = find(&Method::GET, "/v1/enforcements").unwrap_err();
        assert_eq!(wrong.status(), StatusCode::NOT_FOUND);
        let wrong = find(&Method::DELETE, "/v1/enforcement").unwrap_err();
        assert_eq!((wrong.status(), wrong.allow()), (StatusCode::METHOD_NOT_ALLOWED, Some("POST, GET, HEAD")));
    }
}
