-- What customers have bought outlives the rule that it is about: a rule that is deleted may come back. So an override does not need its
-- rule to be there. SQLite cannot take a constraint away, so the table is made anew.
CREATE TABLE overrides_anew (
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
    PRIMARY KEY (domain, id, value)
);
INSERT INTO overrides_anew (domain, id, value, attribute, effect, until, version, author, at_ms)
    SELECT domain, id, value, attribute, effect, until, version, author, at_ms FROM overrides;
DROP TABLE overrides;
ALTER TABLE overrides_anew RENAME TO overrides;
