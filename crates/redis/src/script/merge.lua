-- Merges what a node took under `consistency: eventual` into the states of the store, exactly once. `main.lua` decides the charges,
-- as of when they were taken.
--
-- KEYS     the keys of the states, and as the last one the counter of the node: the sequence number of its last merge.
-- ARGV     as for `main.lua`, and as the last one the sequence number of this merge (7) and the age of the charges in
--          microseconds (7), at most a second. Each charge is a group of its own: verb 3 (take regardless), or 2 (take up to)
--          for charges that are older than a second, which never take a balance below zero.
--
-- Reply    that of `main.lua`; without any group if the merge was counted before. So a merge may be sent any number of times.
-- Expiry   of the counter: a day. A node gives up a merge that has had no answer for nearly as long.
--
-- Mirrors `tollgate_share::tally::merge` for each charge, and the sequence numbers of its payloads.

local DAY = 86400000
local count = #KEYS
local sequence, age = struct.unpack('<I7I7', ARGV[#ARGV])
local keys = { unpack(KEYS, 1, count - 1) }
local last = redis.call('GET', KEYS[count])
local counted = last and tonumber(last) >= sequence
-- Before the first state is written: if this fails, nothing was counted.
if not counted then redis.call('SET', KEYS[count], string.format('%.0f', sequence), 'PX', DAY) end
return chunk('main', keys, age, counted)
