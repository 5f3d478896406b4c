-- One row that every write changes first: it numbers revisions, and lets one writer in at a time.
CREATE TABLE head (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    revision BIGINT NOT NULL,
    -- How many rules there are, and what they and their overrides weigh as text that nodes must be able to read.
    rules BIGINT NOT NULL,
    weight BIGINT NOT NULL,
    -- The last number in the audit log.
    audit BIGINT NOT NULL
);
INSERT INTO head (one, revision, rules, weight, audit) VALUES (1, 0, 0, 0, 0);

CREATE TABLE rules (
    domain TEXT NOT NULL,
    id TEXT NOT NULL,
    -- Rules that allow or deny go by their order within the domain.
    position BIGINT NOT NULL,
    version BIGINT NOT NULL,
    enabled BIGINT NOT NULL,
    text TEXT NOT NULL,
    -- How many overrides it has.
    overrides BIGINT NOT NULL,
    author TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    comment TEXT,
    PRIMARY KEY (domain, id)
);
CREATE INDEX rules_in_order ON rules (domain, position, id);

-- Every version of every rule, also of those that are gone: numbers go on from the last one.
CREATE TABLE versions (
    domain TEXT NOT NULL,
    id TEXT NOT NULL,
    version BIGINT NOT NULL,
    action TEXT NOT NULL,
    enabled BIGINT NOT NULL,
    text TEXT,
    author TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    comment TEXT,
    PRIMARY KEY (domain, id, version)
);

CREATE TABLE overrides (
    domain TEXT NOT NULL,
    id TEXT NOT NULL,
    value TEXT NOT NULL,
    attribute TEXT NOT NULL,
    effect TEXT NOT NULL,
    until TEXT,
    -- The revision in which it was last changed.
    version BIGINT NOT NULL,
    author TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (domain, id, value),
    FOREIGN KEY (domain, id) REFERENCES rules (domain, id)
);

CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    -- The SHA-256 of the token; the token itself is nowhere.
    digest TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    -- A list of names, as JSON.
    domains TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    revoked_ms BIGINT
);
CREATE INDEX tokens_in_order ON tokens (created_ms, id);

CREATE TABLE audit (
    seq BIGINT PRIMARY KEY,
    revision BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    author TEXT NOT NULL,
    kind TEXT NOT NULL,
    action TEXT NOT NULL,
    domain TEXT,
    subject TEXT NOT NULL,
    comment TEXT,
    before_json TEXT,
    after_json TEXT
);
CREATE INDEX audit_by_domain ON audit (domain, seq);
CREATE INDEX audit_by_author ON audit (author, seq);
CREATE INDEX audit_by_subject ON audit (subject, seq);
