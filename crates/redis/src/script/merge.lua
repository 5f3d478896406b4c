-- Merges a node's charges under `consistency: eventual` into the stored states, exactly once. `main.lua` decides the charges as of
-- the time at which the node took them.
--
-- KEYS     the keys of the states, followed by the node's counter key, which holds the sequence number of its last merge.
-- ARGV     as for `main.lua`, followed by one more argument: the sequence number of this merge (7) and the age of the charges in
--          microseconds (7), at most one second. Each charge is a separate group with verb 3 (take regardless). A charge that is
--          older than a second has verb 2 (take up to) instead, so that it never takes a balance below zero.
--
-- Reply    as for `main.lua`; without groups if the merge was already counted. A merge can therefore be sent any number of times.
-- Expiry   of the counter: one day. A node drops a merge after 23 hours without an answer.
--
-- Mirrors `tollgate_share::tally::merge` for each charge, and the sequence numbers of its payloads.

local DAY = 86400000
local count = #KEYS
local sequence, age = struct.unpack('<I7I7', ARGV[#ARGV])
local keys = { unpack(KEYS, 1, count - 1) }
local last = redis.call('GET', KEYS[count])
local counted = last and tonumber(last) >= sequence
-- The counter is written before the first state: if this write fails, nothing was counted.
if not counted then redis.call('SET', KEYS[count], string.format('%.0f', sequence), 'PX', DAY) end
return chunk('main', keys, age, counted)
