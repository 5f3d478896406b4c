-- GCRA with one decision per call, as in most limiters on Redis. KEYS[1] is the key; ARGV is burst, count, and
-- period in seconds.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local step = ARGV[3] * 1000000 / ARGV[2]
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + step
local early = due - step * (ARGV[1] + 1)
if early > now then return { 1, ARGV[1] + 1, 0, math.ceil((early - now) / 1000000), math.ceil((due - step - now) / 1000000) } end
redis.call('SET', KEYS[1], string.format('%.0f', due), 'PX', math.ceil((due - now) / 1000))
return { 0, ARGV[1] + 1, math.floor((now - early) / step), -1, math.ceil((due - now) / 1000000) }
