-- The kill switch of the fleet: 1 while refusals are only observed on all nodes.
ALTER TABLE head ADD COLUMN observing BIGINT NOT NULL DEFAULT 0;
