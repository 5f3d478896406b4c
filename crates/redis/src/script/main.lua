-- Decides any number of groups of charges in one call: every charge of a group is admitted and charged, or none is.
--
-- Mirrors `tollgate-core` for times that are whole microseconds: `Limits` with `weigh`, `commit`, `refund`, `renew`, `init` and
-- `convert`, and below it `Bucket` (`TokenBucket`, `LeakyBucket`), `IntervalBucket`, `FixedWindow`, `SlidingWindow`,
-- `SlidingSlices`, `SlidingLog` and `Concurrency`. Waits and remainders are not computed here: the reply carries the state after
-- the decision, and the Rust functions compute from it what the caller is answered (`answer.rs`).
--
-- KEYS     every key that is charged, each once. A key holds the states of all limits of one rule.
-- ARGV[1]  the charges in order, each:
--            2 bytes  charges of its group that follow
--            2        index of its key in KEYS
--            1        index of its parameters in ARGV, less one
--            1        verb: 1 take exactly, 2 take up to, 3 take regardless (into debt), 4 refund, 5 reset, 6 renew;
--                     9, 10, 11: peek with 1, 2, 3
--            7        cost
--            7        the key's offset for spread windows, if the parameters have one
--            1 + 14n  calendar windows: their number, start and end of each, if the parameters have one
--            1        for verbs 4 and 6: 0, or 1 followed by 1 byte for the number of stamps and for each stamp its thousands (7)
--                     and the rest (2); or 2, followed by the same and by the instant after which a refund is ignored (7)
-- ARGV[2…] the parameters in use, each a MessagePack array with one array per limit: its kind and its fields, which the file of
--          the algorithm lists.
--
-- Reply    one string: the store's time in microseconds (7), then for each group
--            1 byte   status: 0 admitted (or done, for verbs 4 to 6), 1 refused, 2 a calendar window does not contain the store's
--                     time, 3 a key is of another type, 4 a key holds a value of another program; 16 is added to 0 or 1 when the
--                     state of a charge stays under other parameters than the charge has
--          and for status 0, 1, 16 and 17 for each charge
--            1        a bit for each limit that refuses it
--            7        what was taken, only for verbs 2, 10, 4 and 6
--            2        only for status 16 and 17: the length of the state that follows if it stays under other parameters; 0 if it
--                     is under those of the charge
--            n        the state after the charge: the value as stored, unless there are logs and leases, whose length varies: then
--                     without the head, and with their summaries. A state that stays under other parameters: always the
--                     value as stored, only leases by their summary; for verbs that take and peek, as it was before the charge
--
-- Value    the head, which is the version of the format (1) and the parameters of the state (2 bytes for the length, then as in
--          ARGV), and then the cells of each limit. The version is 2. A value of version 1, which was never released, is replaced
--          as if the key were new. `special.lua` marks values of its own, which is removed here. A value of version 3 has a pool
--          before the state: `pool.lua` describes it, and keeps its floor in whatever is written here.
-- Law      the state of a key belongs to the parameters it was last charged under, its own. Time acts on it by these. A take under
--          other parameters is admitted if what is spent by the state's own parameters and the cost together fit the capacity
--          of the request's parameters; only then is the state converted and written. Refusals and peeks leave state and
--          parameters as they are. Refunds and renewals apply under the state's own parameters.
-- Expiry   every write sets it: a second after the state will be unused, rounded up to a quarter of a second. A key that lost its
--          expiry gets one with its next write; since states hold instants, it refuses no request until then.
--
-- Exactness: all numbers are integers, little-endian. Lua computes in doubles, which are exact for integers up to 2^53. The
-- sender bounds the parameters so that no product leaves that range, except where `arithmetic.lua` compares products exactly.
--
-- Errors: the script raises no error after its first write, and no value found under a key makes it raise one.
--
-- Speed: a call costs tens of microseconds before it decides anything, much of it for creating closures. So the common cases are
-- written out here, and each other file is run when it is first needed. `chunk(name, ...)` runs a file: `script.rs`.

-- Run as a chunk, with the keys of the states, the age of the charges in microseconds (they are decided as of that long ago), and
-- whether they are left out, so that only the time is answered: `merge.lua` uses both, otherwise they are 0 and false.
local keys, age, left_out = ...
local floor = math.floor
local pack, read, unpack = struct.pack, struct.unpack, unpack
local call, arguments = redis.call, ARGV

local VERSION, POOLED = 2, 3
local EXACTLY, UP_TO, REGARDLESS = 1, 2, 3
local TOKEN_BUCKET, LEAKY_BUCKET, FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG = 1, 2, 3, 4, 5
local CONCURRENCY, UNLIMITED, DENY_ALL, INTERVAL_BUCKET, SLIDING_SLICES = 6, 7, 8, 9, 10
-- How long a state is kept after it is unused, in quarters of a second.
local MARGIN = 4
-- In place of a time until a state is unused, when it still has to be computed.
local UNKNOWN = -1

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] - age

-- The environment of the other files. A state further ahead of the clock than STALE (as in Rust) was written before
-- the clock was set back. `spread` and `windows` are those of the current charge.
local NO_WINDOWS = {}
local context = {
  now = now, STALE = 1000000, EXACTLY = EXACTLY, UP_TO = UP_TO, REGARDLESS = REGARDLESS, spread = 0, windows = NO_WINDOWS,
  arithmetic = false,
}

-- Parameters ------------------------------------------------------------------------------------------------------------------

-- The functions of an algorithm. A limit is a table with its parameters; its cells begin at `limit.cell` in the cells of a state.
--   read(fields)                       returns the limit with these parameters
--   format, cells                      how its cells are packed, and how many they are; of the limit where they depend on it
--   init(limit, cells)                 writes the state of a new key
--   weigh(limit, cells, verb, cost)    returns how much is admitted, or nil; remembers in the limit what it read
--   commit(limit, cells, taken)        takes it, directly after weighing it; returns the microseconds until the state is unused,
--                                      or nil if nothing was written
--   refuse(limit, cells, verb, cost)   records a refusal, directly after weighing it; returns true if anything was written
--   fast(limit, one, other, cost)      only for algorithms with two cells: returns both after a plain take, and what `commit`
--                                      returns; nil if the fast path does not apply
--   refund(limit, cells, cost, stamp)  returns how much is accepted
--   renew(limit, cells, stamp)         only for leases: returns whether the lease was still held
--   used(limit, cells)                 returns what is used up, with debt: whole tokens, and a fraction as part and whole
--   start_with(limit, cells, whole, part, per)   writes the state that has just that used up, rounded up to what the limit
--                                      distinguishes; returns false if it is more than the limit can hold
--   at_least, refresh, window_end      only where `exchange.lua` grants leases: the floor of `pool.lua`, the state as of now, and
--                                      the end of the window
--   convert(limit, cells, own, before) writes `cells` with what `before` says, a state of the same algorithm under the
--                                      parameters `own`; returns false if `start_with` what is used up does as well or has to do
--   until_unused(limit, cells)         returns the microseconds until the state is unused
--   encode(limit, cells)               only where the length of the state varies: returns how it is stored
--   sound(limit, cells)                likewise: returns whether a state that was read can be one
--   summary(limit, cells, verb, cost, refuses, settled)   likewise: returns what the reply carries instead of the state
local algorithms = {}
local function algorithm_of(kind)
  local algorithm = algorithms[kind]
  if algorithm then return algorithm end
  if kind == TOKEN_BUCKET or kind == LEAKY_BUCKET then
    algorithm = chunk('bucket', context)
  elseif kind == INTERVAL_BUCKET then
    algorithm = chunk('interval_bucket', context)
  elseif kind == FIXED_WINDOW then
    algorithm = chunk('fixed_window', context)
  elseif kind == SLIDING_WINDOW then
    algorithm = chunk('sliding_window', context)
  elseif kind == SLIDING_SLICES then
    algorithm = chunk('sliding_slices', context)
  elseif kind == SLIDING_LOG then
    algorithm = chunk('sliding_log', context)
  elseif kind == CONCURRENCY then
    algorithm = chunk('concurrency', context)
  elseif kind == UNLIMITED or kind == DENY_ALL then
    algorithm = chunk('stateless', kind == UNLIMITED)
  else
    error('unknown kind of limit')
  end
  algorithms[kind] = algorithm
  return algorithm
end

-- Returns the limits with these parameters. Raises an error for bytes that are not parameters. The head of a value is the first
-- cell of a state, so that one call reads or writes a value.
local parsed = {}
local function parse(bytes)
  local fields = cmsgpack.unpack(bytes)
  local head = pack('<BI2c0', VERSION, #bytes, bytes)
  local limits = {
    head = head, count = #fields, cells = 1, format = '<c' .. #head, size = 0,
    -- Whether the value is always of the same length; whether, besides, a charge needs neither spread nor windows; whether a new
    -- key has less than the capacity; whether a window is spread; the indexes of calendar windows; the fast path of a single
    -- limit.
    fixed = true, simple = true, partial = false, spread = false, windows = NO_WINDOWS, fast = false,
  }
  for index = 1, #fields do
    local kind = fields[index][1]
    local algorithm = algorithm_of(kind)
    local limit = algorithm.read(fields[index])
    limit.kind, limit.algorithm, limit.cell, limit.bit = kind, algorithm, limits.cells + 1, 2 ^ (index - 1)
    limit.weigh, limit.commit = algorithm.weigh, algorithm.commit
    if limit.partial then limits.partial = true end
    if algorithm.encode then limits.fixed, limits.simple = false, false end
    if limit.spreads then limits.spread, limits.simple = true, false end
    if limit.window then
      if limits.windows == NO_WINDOWS then limits.windows = {} end
      limits.windows[#limits.windows + 1], limits.simple = limit.window, false
    end
    limit.format, limit.cells = limit.format or algorithm.format, limit.cells or algorithm.cells
    limits.format, limits.cells = limits.format .. limit.format, limits.cells + limit.cells
    limits[index] = limit
  end
  if limits.fixed then limits.size = struct.size(limits.format) end
  if limits.count == 1 then limits.fast = limits[1].algorithm.fast or false end
  parsed[bytes] = limits
  return limits
end

-- The limits with the parameters at an index of the arguments.
local parameters = {}
local function parameters_at(index)
  local bytes = arguments[index + 1]
  local limits = parsed[bytes] or parse(bytes)
  parameters[index] = limits
  return limits
end

-- Keys ------------------------------------------------------------------------------------------------------------------------

-- The present values, by the index of their key: as found or as changed by the charges so far. False if there is none,
-- or if it has to be packed from the record. The fast path uses nothing else of a key.
local values = {}
-- One record for each key that needs more than the fast path. It has few fields, since creating it costs time:
--   1…        the cells of the state, of which the first is the head of the value
--   limits    the state's own parameters
--   unused    the microseconds until the state is unused or UNKNOWN, if it has to be written; otherwise false
-- A key without a value that does not have to be written does not exist yet, and its cells are those of a new key. Rarely also:
--   begins    true for a new key that starts with less than the capacity: it has to be written when next charged or refused
--   delete    true if the key has to be deleted unless it is written
--   spread, windows   those of the last charge, which the expiry may depend on
--   gap_passed  true in a converted log: the minimum gap has passed, so it is not to be judged by entries that were moved
--   status    3 or 4 if the key cannot be used
local records = {}
-- The pools of keys that have one, by the index of the key.
local pools, has_pools, pooled = nil, false, {}

if #keys > 0 and not left_out then
  values = call('MGET', unpack(keys))
  for key = 1, #keys do
    local value = values[key]
    if value then
      local version, _, _, _, _, mark = string.byte(value, 1, 6)
      if version == POOLED then
        has_pools = true
      elseif mark == 204 and version == VERSION and #value > 7 then
        -- The mark of `special.lua`, in a value with at least a head.
        values[key] = pack('<BI2', VERSION, read('<I2', value, 2) - 1) .. string.sub(value, 4, 5) .. string.sub(value, 7)
      end
    end
  end
  -- A key of another type reads as absent, so the absent ones are counted.
  local missing = {}
  for key = 1, #keys do
    if not values[key] then missing[#missing + 1] = keys[key] end
  end
  if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
    for key = 1, #keys do
      if not values[key] and call('EXISTS', keys[key]) == 1 then records[key] = { status = 3 } end
    end
  end
end

-- Writes a value that will be unused after these microseconds. The expiry is an instant, since the store would otherwise convert
-- it for its replicas, and a multiple of a quarter of a second, since most are then equal: formatting takes a tenth of all time.
local expiries, slow_path = {}, nil
local function write(key, value, unused)
  if pooled[key] then value, unused = slow_path().with_pool(pools, pooled[key], value) end
  local steps = floor((now + unused) / 250000) + 1 + MARGIN
  local expiry = expiries[steps]
  if not expiry then
    expiry = string.format('%.0f', steps * 250)
    expiries[steps] = expiry
  end
  call('SET', keys[key], value, 'PXAT', expiry)
end

-- Decisions -------------------------------------------------------------------------------------------------------------------

local charges, position = left_out and '' or arguments[1], 1
local reply, replies = { pack('<I7', now + age) }, 1
local ADMITTED = '\0\0'

local slow
slow_path = function()
  if not slow then
    slow = chunk('slow_path', {
      context = context, values = values, records = records, reply = reply, parsed = parsed, parse = parse,
      parameters = parameters, parameters_at = parameters_at, NO_WINDOWS = NO_WINDOWS, UNKNOWN = UNKNOWN, VERSION = VERSION,
    })
  end
  return slow
end

-- What is left of leases is taken into account before anything is decided. A value that cannot be read stays, and is not ours.
if has_pools then
  pools = chunk('pool', now)
  for key = 1, #keys do
    local value = values[key]
    if value and string.byte(value) == POOLED then
      local pool, state = pools.open(value)
      local touched = pool and slow_path().touched(pools, pool, state)
      if touched then values[key], pooled[key] = touched, pools.needed_until(pool) > 0 and pool or nil end
    end
  end
end

while position <= #charges do
  local rest, key, index, verb, cost, after = read('<I2I2BBI7', charges, position)
  local limits = parameters[index] or parameters_at(index)
  local record, done, fast = records[key], false, limits.fast
  if fast and not record and rest == 0 and verb == EXACTLY then
    -- The fast path, which most charges take: one bucket, and the cost fits. It works on the stored value, without a
    -- record, and writes immediately, so that the next charge of the key finds the result.
    local value, head, one, other, unused = values[key], nil, 0, 0, nil
    if not value then
      head = not limits.partial and limits.head
    elseif #value == limits.size then
      head, one, other = read(limits.format, value)
    end
    if head == limits.head then one, other, unused = fast(limits[1], one, other, cost) end
    if unused then
      value = pack(limits.format, head, one, other)
      values[key] = value
      write(key, value, unused)
      reply[replies + 1], reply[replies + 2] = ADMITTED, value
      replies, position, done = replies + 2, after, true
    end
  end
  if not done then
    -- The middle path: one charge of any verb that takes, on limits whose states are of fixed length and are under these
    -- parameters.
    if rest ~= 0 or verb > REGARDLESS or not limits.simple then
      record = nil
    elseif not record then
      local value = values[key]
      if value then
        if #value == limits.size then
          record = { limits = limits, unused = false, read(limits.format, value) }
          if record[1] == limits.head then records[key] = record else record = nil end
        end
      elseif not limits.partial then
        record = { limits = limits, unused = false, limits.head }
        for limit = 1, limits.count do limits[limit].algorithm.init(limits[limit], record) end
        records[key] = record
      end
    elseif record.limits ~= limits or record.begins then
      record = nil
    end
    if not record then
      position = slow_path().decide(position)
      replies = #reply
    else
      position = after
      local taken, refusing, count = cost, 0, limits.count
      for limit = 1, count do
        limit = limits[limit]
        local passes = limit.weigh(limit, record, verb, cost)
        if not passes then
          refusing = refusing + limit.bit
        elseif passes < taken then
          taken = passes
        end
      end
      local unused
      if refusing == 0 then
        for limit = 1, count do
          limit = limits[limit]
          local time_left = limit.commit(limit, record, taken)
          if time_left and (not unused or time_left > unused) then unused = time_left end
        end
      else
        slow_path().refuse(key, record, verb, cost, refusing)
      end
      local value = values[key]
      if unused then
        value = pack(limits.format, unpack(record, 1, limits.cells))
        -- A limit from which nothing was taken has not returned the time until it is unused.
        values[key], record.unused = value, taken > 0 and unused or UNKNOWN
      elseif not value then
        value = pack(limits.format, unpack(record, 1, limits.cells))
      end
      replies = replies + 1
      reply[replies] = refusing == 0 and ADMITTED or string.char(1, refusing)
      if verb == UP_TO then
        replies = replies + 1
        reply[replies] = pack('<I7', taken)
      end
      replies = replies + 1
      reply[replies] = value
    end
  end
end

-- Writes the records. A write can fail only at the first one (out of memory, a replica); then nothing is written and
-- the call fails as a whole. The permission to set and delete was tested when the connection was made.
for key, record in pairs(records) do
  local limits, unused = record.limits, record.unused
  if unused and limits.cells > 1 then
    if unused == UNKNOWN then unused = slow_path().until_unused(record) end
    write(key, values[key] or slow_path().value_of(record), unused)
  elseif record.delete then
    if pooled[key] then
      -- A reset leaves the leases of nodes as they are, in the window of the key.
      context.spread, context.knows_key = record.spread or 0, true
      write(key, slow_path().value_of(record), 0)
    else
      call('DEL', keys[key])
    end
  end
end
return table.concat(reply)
