//! The description of all calls, for people and generators of clients (OpenAPI): those of the rules service from their code, those that
//! decide from [`data`].

use utoipa::ToSchema;

/// A rule file to show.
pub(super) const FILE: &str = "domain: api\nrules:\n- id: per-client\n  per: [client_ip]\n  limit: 100/s\n";

/// A rule as in a file. These are the keys that most have; the rule language has more.
#[derive(ToSchema)]
pub(super) struct Rule;

/// An override as in a file, without `when`.
#[derive(ToSchema)]
pub(super) struct Override;

/// A rule file.
#[derive(ToSchema)]
pub(super) struct File;
