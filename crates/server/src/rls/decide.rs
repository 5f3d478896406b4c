//! Decides rate-limit-service requests: converts descriptors to engine items, and the decision to one status per
//! descriptor.

use std::time::Duration;

use tollgate::core::{Cost, Nanos};
use tollgate::{FixedWindow, Limit, Limits, Outcome};
use tollgate_engine::{Attribute, Decision, Engine, InternedLimits, Item, PooledDecisions, Request, Store, TakeMode};

use super::metadata::response_metadata;
use super::slots;
use super::status;
use super::wire::{Descriptor, DescriptorStatus, LimitOverride, RateLimitRequest, RateLimitResponse, ResponseCode};
use crate::app::App;
use crate::control::auth::{Access, Scope};
use crate::control::model::Role;
use crate::net::protocol::Protocol;
use crate::ops::Verb;
use crate::ops::error::OpError;
use crate::ops::run::decide_requests;

/// Decides a request. Returns the response, and the delay before the response is sent.
///
/// # Errors
/// Returns an error if the request is invalid or the caller has no access to the domain.
pub(super) async fn decide<S: Store>(
    app: &App<S>,
    access: &Access,
    message: &RateLimitRequest<'_>,
) -> Result<(RateLimitResponse, Duration), OpError> {
    validate_request(message)?;
    if access.is_limited_to_domains() {
        access.require_role(Role::Reader, Scope::Domain(&String::from_utf8_lossy(message.domain)))?;
    }
    let mut response = RateLimitResponse {
        statuses: vec![DescriptorStatus::default(); message.descriptors.len()],
        ..RateLimitResponse::default()
    };
    // Requests for a domain without rules are admitted, as in the reference service, so that a proxy can be configured
    // before its rules.
    if app.engine.rules().attributes(message.domain).is_none() {
        app.metrics.count_descriptors(0, message.descriptors.len());
        response.metadata = response_metadata(app.rls_options.metadata, message, None, &[], &response.statuses);
        return Ok((response, Duration::ZERO));
    }
    let items: Vec<DescriptorItem<'_>> = message
        .descriptors
        .iter()
        .map(|descriptor| DescriptorItem::new(&app.engine, message, descriptor))
        .collect::<Result<_, _>>()?;
    refund_negative_hits(app, message, &items).await;
    // Refunds need no decision. `indices` maps the index of each decided item to the index of its descriptor.
    let (indices, decided): (Vec<usize>, Vec<Item<'_>>) = items
        .iter()
        .enumerate()
        .filter(|(_, item)| !item.is_refund)
        .map(|(index, item)| (index, item.to_item()))
        .unzip();
    if decided.is_empty() {
        response.metadata = response_metadata(app.rls_options.metadata, message, None, &[], &response.statuses);
        return Ok((response, Duration::ZERO));
    }
    let mut decisions = PooledDecisions::take();
    let request = Request { domain: message.domain, items: &decided };
    decide_requests(app, Protocol::Rls, Verb::Check, std::slice::from_ref(&request), &mut decisions, app.now()).await;
    let decision = decisions.get(0)?;
    // A bit set of the matched items. A request has at most 64 items.
    let matched = decision.rule_matches().fold(0_u64, |bits, matched| bits | 1_u64.wrapping_shl(matched.item as u32));
    let matched = matched.count_ones() as usize;
    app.metrics.count_descriptors(matched, decided.len().saturating_sub(matched));
    if !decision.is_admitted() {
        response.code = ResponseCode::OverLimit;
        if let Some(message) = decision.refusal().and_then(|refusal| refusal.message.as_deref()) {
            response.headers.push(("content-type".into(), "text/plain; charset=utf-8".into()));
            message.clone_into(&mut response.body);
        }
    }
    status::for_each_status(&decision, |item, status| response.statuses[indices[item]] = status);
    store_receipts(app, message, &decision, &indices);
    let options = &app.rls_options;
    response.headers.extend(options.headers.headers_of(&decision));
    if decision.is_admitted() {
        response.request_headers = options.request_headers.headers_of(&decision);
    }
    response.metadata = response_metadata(options.metadata, message, Some(&decision), &indices, &response.statuses);
    let delay = if let Outcome::Delay(wait) = decision.outcome() { wait.into() } else { Duration::ZERO };
    drop(decisions);
    charge_into_debt(app, message, &items, response.code).await;
    Ok((response, delay))
}

fn validate_request(message: &RateLimitRequest<'_>) -> Result<(), OpError> {
    if message.domain.is_empty() {
        return Err(OpError::invalid("domain", "the domain is empty"));
    }
    if message.descriptors.is_empty() {
        return Err(OpError::invalid("descriptors", "the request has no descriptors"));
    }
    Ok(())
}

/// Stores the receipts of an admitted request's concurrency slots. For a refused request, records the refused
/// descriptors.
fn store_receipts<S: Store>(app: &App<S>, message: &RateLimitRequest<'_>, decision: &Decision<'_>, indices: &[usize]) {
    let name = |item: usize| slots::descriptor_key(message.domain, &message.descriptors[indices[item]].entries);
    if decision.is_admitted() {
        for item in 0..indices.len() {
            let receipt = decision.slot_receipt(item);
            if !receipt.is_empty() {
                app.held_slots.add_receipt(name(item), receipt);
            }
        }
        return;
    }
    for item in 0..indices.len() {
        // A limit without a window is a concurrency limit. A request has no reports if it is denied before its limits
        // are checked.
        let has_limit = decision.reports().any(|limit| limit.item == item && limit.window.is_none());
        if has_limit {
            app.held_slots.record_refusal(name(item), app.now());
        } else if app.held_slots.was_ever_used() {
            app.held_slots.record_refusal_if_held(&name(item), app.now());
        }
    }
}

/// Refunds the descriptors with negative hits. If the store fails, the error is logged and the refund is lost.
async fn refund_negative_hits<S: Store>(app: &App<S>, message: &RateLimitRequest<'_>, items: &[DescriptorItem<'_>]) {
    let refunds: Vec<Item<'_>> = items.iter().filter(|item| item.is_refund).map(DescriptorItem::to_item).collect();
    if refunds.is_empty() {
        return;
    }
    let request = Request { domain: message.domain, items: &refunds };
    if let Err(error) = app.engine.refund_request(&request, &mut PooledDecisions::take()).await {
        tracing::warn!(%error, "refund by negative hits failed");
    }
    for descriptor in message.descriptors.iter().filter(|descriptor| descriptor.is_negative_hits) {
        release_oldest_slot(app, &slots::descriptor_key(message.domain, &descriptor.entries)).await;
    }
}

/// Releases the oldest slot of a descriptor. Skips slots whose lease has expired.
async fn release_oldest_slot<S: Store>(app: &App<S>, descriptor: &[u8]) {
    while let Some(receipt) = app.held_slots.take_receipt(descriptor, app.now()) {
        match app.engine.refund(&receipt).await {
            Ok(Cost::ZERO) => {}
            Ok(_) => return,
            Err(error) => return tracing::warn!(%error, "release of a slot failed"),
        }
    }
}

/// Records the descriptors with a cost of 0. If the request was refused, charges its descriptors that were recently
/// checked with a cost of 0. The charge may put the limits of these descriptors into debt, up to the maximum debt. See
/// `zero_cost.rs`.
async fn charge_into_debt<S: Store>(
    app: &App<S>,
    message: &RateLimitRequest<'_>,
    items: &[DescriptorItem<'_>],
    code: ResponseCode,
) {
    let name = |descriptor: &Descriptor<'_>| slots::descriptor_key(message.domain, &descriptor.entries);
    let mut taken = Vec::new();
    for (descriptor, item) in message.descriptors.iter().zip(items).filter(|(_, item)| !item.is_refund) {
        match descriptor.hits_addend {
            Some(0) => app.zero_cost_checks.add(&name(descriptor)),
            Some(_) if code == ResponseCode::OverLimit && app.zero_cost_checks.contains(&name(descriptor)) => {
                taken.push(item.to_item());
            }
            Some(_) | None => {}
        }
    }
    if !taken.is_empty() {
        // Each descriptor is charged by a separate request, so that a descriptor at its maximum debt does not block the
        // others.
        let request = |item| Request { domain: message.domain, items: std::slice::from_ref(item) };
        let requests: Vec<Request<'_>> = taken.iter().map(request).collect();
        app.engine.take_batch(TakeMode::Regardless, &requests, &mut PooledDecisions::take()).await;
    }
}

/// A descriptor, converted for the engine.
struct DescriptorItem<'a> {
    attributes: Vec<Attribute<'a>>,
    cost: Option<Cost>,
    /// The inline limit of the descriptor, and the key of its counter.
    inline: Option<(InternedLimits, Vec<u8>)>,
    is_refund: bool,
}

impl<'a> DescriptorItem<'a> {
    fn new<S: Store>(
        engine: &Engine<S>,
        message: &RateLimitRequest<'_>,
        descriptor: &Descriptor<'a>,
    ) -> Result<Self, OpError> {
        let hits = Some(u64::from(message.hits_addend)).filter(|hits| *hits > 0);
        let inline = descriptor.limit.map(|limit| inline_limit(engine, &limit)).transpose()?;
        Ok(Self {
            attributes: descriptor.entries.iter().map(|(key, value)| Attribute::new(*key, *value)).collect(),
            // If neither the descriptor nor the request specifies hits, each rule determines the cost (1 by default).
            cost: descriptor.hits_addend.or(hits).map(Cost::new),
            inline: inline.map(|(limits, unit)| (limits, inline_counter_key(unit, &descriptor.entries))),
            is_refund: descriptor.is_negative_hits,
        })
    }

    fn to_item(&self) -> Item<'_> {
        match &self.inline {
            Some((limits, key)) => Item { cost: self.cost, ..Item::inline(key, limits) },
            None => Item { cost: self.cost, ..Item::new(&self.attributes) },
        }
    }
}

/// Returns the inline limit of a descriptor, and the number of its time unit.
fn inline_limit<S: Store>(engine: &Engine<S>, limit: &LimitOverride) -> Result<(InternedLimits, u8), OpError> {
    let units = &status::UNITS[..6];
    let Some((unit, length)) = units.iter().find(|(unit, _)| u64::from(*unit) == limit.unit) else {
        let detail = format!("the limit has the unit {}; available: 1 (second) to 6 (year)", limit.unit);
        return Err(OpError::invalid("limit", detail));
    };
    let limits = match limit.requests_per_unit {
        0 => Limits::from(Limit::DenyAll),
        requests => {
            let window = FixedWindow::new(requests.into(), Nanos::from_secs(*length));
            Limits::from(Limit::from(window.map_err(|error| OpError::invalid("limit", error.to_string()))?))
        }
    };
    Ok((engine.intern_limits(&limits)?, *unit as u8))
}

/// Returns the counter key of a descriptor's inline limit. The key consists of the unit and the names and values of all
/// entries, each prefixed with its length.
fn inline_counter_key(unit: u8, entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut key = vec![unit];
    for part in entries.iter().flat_map(|(name, value)| [name, value]) {
        key.extend_from_slice(&(part.len() as u32).to_be_bytes());
        key.extend_from_slice(part);
    }
    key
}
