-- The general script: decides one or more groups of charges in one call. Each group is charged all or none.
--
-- Mirrors `tollgate-core` for times in whole microseconds: `Limits` (`weigh`, `commit`, `refund`, `renew`, `init`, `convert`), and
-- the algorithms `Bucket` (`TokenBucket`, `LeakyBucket`), `IntervalBucket`, `FixedWindow`, `SlidingWindow`, `SlidingSlices`,
-- `SlidingLog` and `Concurrency`. The reply contains the state after the decision, and Rust computes waits and remaining amounts
-- from it (`answer.rs`). The states of logs and leases are long, so the reply contains summaries of them, with their waits.
--
-- KEYS     the charged keys, without duplicates. A key holds the states of all limits of one rule.
-- ARGV[1]  the charges in order. Fields of each charge, with their sizes in bytes:
--            2        number of charges of the group after this charge
--            2        index of the key in KEYS
--            1        index of the parameters in ARGV, minus one
--            1        verb: 1 = take exactly, 2 = take up to, 3 = take regardless (into debt), 4 = refund, 5 = reset, 6 = renew;
--                     9, 10 and 11 = peek with verb 1, 2 and 3
--            7        cost
--            7        if a limit has spread windows: the key's offset
--            1 + 14n  if a limit has a calendar window: number of calendar windows, then start and end of each
--            1        for verbs 4 and 6: 0 = no stamps, 1 = stamps follow, 2 = stamps and a deadline follow. Stamps: their number
--                     (1), and for each stamp its quotient by 1000 (7) and its remainder (2). Deadline: the instant after
--                     which the refund is ignored (7)
-- ARGV[2…] the sets of parameters in use. Each set is a MessagePack array with one array per limit: the kind and the
--          fields, which are listed in the header of the algorithm's file.
--
-- Reply    one string: the store's time in microseconds (7), then for each group
--            1        status: 0 = admitted (verbs 4 to 6: done), 1 = refused, 2 = a calendar window does not contain the store's
--                     time, 3 = a key has another type, 4 = the value of a key is not a valid state. 16 is added to 0
--                     or 1 if a state of the group keeps parameters other than the charge's
--          and, for status 0, 1, 16 and 17, for each charge
--            1        one bit per limit, set if the limit refuses the charge
--            7        only for verbs 2, 4, 6 and 10: the amount taken, refunded or renewed
--            2        only for status 16 and 17: length of the state that follows if it keeps other parameters; otherwise 0
--            n        the state after the charge. If the state has a fixed length: the value as stored. If a limit is a log or has
--                     leases: the cells without the head, with summaries for logs and leases. If the state keeps other
--                     parameters: the value as stored, with summaries only for leases; for verbs that take or peek, this is
--                     the state before the charge
--
-- Value    a head, then the cells of each limit. The head is the format version (1 byte, value 2), the length of the parameters
--          (2), and the parameters of the state as in ARGV. A value of version 1, which was never released, is treated as a new
--          key. `special.lua` marks some values; this script removes the mark. A value of version 3 has a pool before the
--          state (see `pool.lua`). The pool's floor is applied to every write.
-- Law      a state has the parameters of its last charge, called its own parameters. The state refills or expires by its own
--          parameters. A charge under other parameters is admitted if the used amount plus the cost is at most the capacity of
--          the charge's parameters. Only then is the state converted. A refusal keeps the state under its own parameters, and
--          writes at most refused attempts and the repair of a clock step. Refunds and renewals are applied under the state's
--          own parameters.
-- Expiry   set by every write: one second after the state becomes unused, rounded up to a quarter of a second. If a key has lost
--          its expiry, the next write sets one. Until then the key is harmless: states contain instants, so an old state is unused.
--
-- Exactness: all numbers are little-endian integers. Lua computes in doubles, which are exact for integers up to 2^53. The sender
-- bounds the parameters so that products stay in that range, except products that `arithmetic.lua` compares exactly.
--
-- Errors: the script raises no error after its first write, and no stored value causes an error.
--
-- Speed: a call costs tens of microseconds before the first decision, mostly for creating closures. So this file contains the
-- common cases, and every other file is run when it is first needed, by `chunk(name, ...)` (see `script.rs`).

-- Arguments of this chunk: the keys of the states, the age of the charges in microseconds, and whether to skip the charges and
-- reply only with the time. Charges are decided as of `age` microseconds ago. `merge.lua` sets the age and the flag;
-- otherwise they are 0 and false.
local keys, age, left_out = ...
local floor = math.floor
local pack, read, unpack = struct.pack, struct.unpack, unpack
local call, arguments = redis.call, ARGV

local VERSION, POOLED = 2, 3
local EXACTLY, UP_TO, REGARDLESS = 1, 2, 3
local TOKEN_BUCKET, LEAKY_BUCKET, FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG = 1, 2, 3, 4, 5
local CONCURRENCY, UNLIMITED, DENY_ALL, INTERVAL_BUCKET, SLIDING_SLICES = 6, 7, 8, 9, 10
-- Time for which an unused state is kept, in quarters of a second.
local MARGIN = 4
-- Placeholder for `write_for` (see below) if it must be computed later.
local UNKNOWN = -1

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] - age

-- The environment of the other files. If a state is further ahead of the clock than STALE (as in Rust), the clock was
-- set back after the state was written. `spread` and `windows` belong to the current charge.
local NO_WINDOWS = {}
local context = {
  now = now, STALE = 1000000, EXACTLY = EXACTLY, UP_TO = UP_TO, REGARDLESS = REGARDLESS, spread = 0, windows = NO_WINDOWS,
  arithmetic = false,
}

-- Parameters ------------------------------------------------------------------------------------------------------------------

-- The functions of an algorithm. A limit is a table with its parameters; its cells start at `limit.cell` in the cells of a state.
--   read(fields)                       returns the limit with these parameters
--   format, cells                      pack format and number of its cells; fields of the limit if they depend on the parameters
--   init(limit, cells)                 writes the state of a new key
--   weigh(limit, cells, verb, cost)    returns the admitted amount, or nil; caches the state that it read in the limit
--   commit(limit, cells, taken)        takes the amount, directly after `weigh`; returns the microseconds until the state is
--                                      unused, or nil if nothing was written
--   refuse(limit, cells, verb, cost)   records a refusal, directly after `weigh`; returns true if anything was written
--   fast(limit, one, other, cost)      only for algorithms with two cells: takes exactly `cost`; returns both new cells and the
--                                      result of `commit`, or nil if the fast path does not apply
--   refund(limit, cells, cost, stamp)  returns the accepted amount
--   renew(limit, cells, stamp)         only for leases: returns whether the lease was still held
--   used(limit, cells)                 returns the used amount, including debt: whole tokens, and a fraction `part / per`
--   start_with(limit, cells, whole, part, per)   writes a state in which this amount is used, rounded up to the resolution of the
--                                      limit; returns false if the limit cannot hold the amount
--   at_least, refresh, window_end      only for limits that `exchange.lua` can lease: apply the floor of `pool.lua`, advance the
--                                      state to now, return the end of the window
--   convert(limit, cells, own, before) converts `before`, a state of the same algorithm with the parameters `own`, and writes it to
--                                      `cells`; returns false if the caller must use `start_with` with the used amount instead
--   until_unused(limit, cells)         returns the microseconds until the state is unused
--   encode(limit, cells)               only for states of variable length: returns the stored form
--   sound(limit, cells)                likewise: returns whether the cells that were read are a valid state
--   summary(limit, cells, verb, cost, refuses, settled)   likewise: returns the form of the state in the reply
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

-- Returns the limits with these parameters, or raises an error if the bytes are not parameters. The head of a value is the first
-- cell of a state, so that one `pack` or `unpack` handles the whole value.
local parsed = {}
local function parse(bytes)
  local fields = cmsgpack.unpack(bytes)
  local head = pack('<BI2c0', VERSION, #bytes, bytes)
  local limits = {
    head = head, count = #fields, cells = 1, format = '<c' .. #head, size = 0,
    -- fixed: the value has a fixed length. simple: fixed, and charges need neither spread nor windows. partial: a new key starts
    -- with less than the capacity. spread: a limit has spread windows. windows: indexes of calendar windows. fast: the fast path,
    -- if there is only one limit.
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

-- Returns the limits with the parameters in ARGV[index + 1].
local parameters = {}
local function parameters_at(index)
  local bytes = arguments[index + 1]
  local limits = parsed[bytes] or parse(bytes)
  parameters[index] = limits
  return limits
end

-- Keys ------------------------------------------------------------------------------------------------------------------------

-- The current values by key index, including changes by the charges so far. False if there is no value, or if the value must be
-- packed from the record. The fast path uses only these values and no records.
local values = {}
-- One record for each key that needs more than the fast path. Creating a record is slow, so it has few fields:
--   1…        the cells of the state; the first cell is the head of the value
--   limits    the state's own parameters
--   write_for if the record must be written: the microseconds until the state is unused, or UNKNOWN; otherwise false
-- If a key has no value and needs no write, it does not exist yet, and its record holds the state of a new key. Rare fields:
--   begins    true for a new key that starts with less than the capacity: the next charge or refusal must write it
--   delete    true if the key must be deleted, unless it is written
--   spread, windows   copied from the last charge, because the expiry may depend on them
--   gap_passed  true in a converted log whose minimum gap has passed: the gap must not be checked again with the moved entries
--   status    3 or 4 if the key cannot be used
local records = {}
-- The pools by key index, for keys that have a pool.
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
        -- Removes the mark of `special.lua` from a value that has at least a head.
        values[key] = pack('<BI2', VERSION, read('<I2', value, 2) - 1) .. string.sub(value, 4, 5) .. string.sub(value, 7)
      end
    end
  end
  -- MGET returns nothing for a key of another type, so check whether missing keys exist.
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

-- Writes a value that will be unused after `unused` microseconds. The expiry is absolute, because the store would otherwise convert
-- it for its replicas. The expiry is a multiple of 250 ms, so that most expiries are equal and are formatted only once. Formatting
-- takes a tenth of the total time.
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

-- Applies the floors of pools before any decision. A value that cannot be decoded stays as it is and is later rejected.
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
    -- The fast path: one bucket with enough tokens. The fast path works on the stored value without a record, and
    -- writes immediately, so that the next charge of the key sees the result.
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
    -- The middle path: one charge with any verb that takes. The state has a fixed length and the charge's parameters.
    if rest ~= 0 or verb > REGARDLESS or not limits.simple then
      record = nil
    elseif not record then
      local value = values[key]
      if value then
        if #value == limits.size then
          record = { limits = limits, write_for = false, read(limits.format, value) }
          if record[1] == limits.head then records[key] = record else record = nil end
        end
      elseif not limits.partial then
        record = { limits = limits, write_for = false, limits.head }
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
        -- If nothing was taken, some limits may not have returned a time.
        values[key], record.write_for = value, taken > 0 and unused or UNKNOWN
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

-- Writes the records. Redis checks its memory and its role only before the first write of a script. If that check fails,
-- nothing is written and the whole call fails; no later write can fail. The permissions for SET and DEL were tested when the
-- connection was opened.
for key, record in pairs(records) do
  local limits, write_for = record.limits, record.write_for
  if write_for and limits.cells > 1 then
    if write_for == UNKNOWN then write_for = slow_path().until_unused(record) end
    write(key, values[key] or slow_path().value_of(record), write_for)
  elseif record.delete then
    if pooled[key] then
      -- A reset does not affect leases that nodes hold, so the pool stays.
      context.spread, context.knows_key = record.spread or 0, true
      write(key, slow_path().value_of(record), 0)
    else
      call('DEL', keys[key])
    end
  end
end
return table.concat(reply)
