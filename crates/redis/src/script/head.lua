-- Decides any number of groups of charges in one call: for every group first all charges, then all of them commit or none.
--
-- Mirrors, limit by limit and number by number, what `tollgate-core` does with times that are whole microseconds: `Limits`
-- with `weigh`, `commit`, `refund`, `fresh` and `convert`, and below them `Bucket` with `TokenBucket` and `LeakyBucket`,
-- `FixedWindow`, `SlidingWindow`, `SlidingLog` and `Concurrency`. What callers are told (waits, remainders) is not computed
-- here: the reply carries what is kept after the decision, and the Rust functions say what it means.
--
-- KEYS     every key that is charged, each once. All of them are declared; a key holds all limits of one rule for one key.
-- ARGV[1]  the charges, in order, each: how many charges of its group follow (2 bytes), place of its key in KEYS (2), place of
--          its numbers (1), verb (1: 1 exactly, 2 up to, 3 regardless, 4 refund, 5 reset; 8 more for peeking), cost (7);
--          then, if the numbers use it, the key's number for spreading windows (7) and the windows handed in (1 for how many, 7 + 7
--          for each); then, for a refund, 1 and a stamp for each limit (7 each), or 0.
-- ARGV[2…] the sets of numbers that are used, each a MessagePack array with an array for each limit; see the algorithms.
--
-- Reply    one string: the store's time in microseconds (7); then for every group a status (1: 0 passed, 1 refused, 2 windows
--          do not fit the store's time, 3 a key is of another type, 4 a key holds something that is not ours), and unless it
--          is 2 or more for every charge which limits refuse it (1, a bit for each), how much is taken (7, only for `up to` and
--          for refunds), and what is kept by each limit, or for logs and leases what has to be known about it.
--
-- Value    a byte for the version of the format (1), the numbers it was written under (2 bytes for the length, then as in
--          ARGV), and the cells of each limit. A value written under other numbers is converted when it is next touched.
-- Expiry   every write sets it: until the state is as good as new, and a second more, rounded up to a quarter of a second. A key
--          that lost its expiry gets one with its next write, and until then locks nobody out, since what is kept are instants.
--
-- A call costs some microseconds before anything is decided, most of them for making functions. So what a plain request needs
-- is written out in the last part, and everything else is made when it is first needed: `algorithm_of` and `general`.
--
-- All numbers are integers, little-endian. Lua counts in doubles, which hold integers exactly up to 2^53; whoever sends numbers
-- sees to it that no product leaves that range except where it is compared through `wide`. Nothing here may raise an error once
-- writing has begun, and no value found under a key may raise one at all.

local floor, max, min = math.floor, math.max, math.min
local pack, read, sub, unpack = struct.pack, struct.unpack, string.sub, unpack

local EXACTLY, UP_TO, REGARDLESS, REFUND, RESET, RENEW, PEEK = 1, 2, 3, 4, 5, 6, 8
-- How far ahead of the clock a state is believed; beyond it, the clock was set back. `STALE` in Rust.
local BELIEVED = 1000000
-- How long a state is kept after it is as good as new, in quarters of a second.
local MARGIN = 4

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- What the charge at hand brings along: its number for spreading windows, and its windows by position.
local NO_WINDOWS = {}
local spread, windows = 0, NO_WINDOWS

-- The functions of an algorithm. A limit is a table with its numbers, and finds its cells in a state from `limit.cell` on.
--   read(fields)                 the limit from its numbers
--   format, cells                how its cells are kept, and how many there are
--   fresh(limit, state)          the cells of a key never seen before
--   weigh(limit, state, verb, cost)     how much passes, or nil; notes in the limit what it saw
--   commit(limit, state, taken)         takes it, directly after weighing it; the microseconds until the limit is as good as
--                                       new, or nil if nothing was written
--   refuse(limit, state, verb, cost)    counts a refusal, directly after weighing it; true if anything was written
--   short(limit, one, other, cost)      only of an algorithm with two cells: both after a cost that passes without more ado, and
--                                       what `commit` gives; nil if it does not pass, or if anything is odd
--   refund(limit, state, cost, stamp)   how much is accepted
--   available(limit, state)      how much would pass
--   fades(limit, state)          microseconds until it is as good as new
--   convert(limit, state, old, before)  takes over the cells of the same algorithm under other numbers
--   tell(limit, state, verb, cost, settled)  what has to be known about it, where that is not its cells
local function algorithm_of(kind)
  -- The product of two integers below 2^52, as two numbers below 2^52.
  local function wide(a, b)
    local a1, b1 = floor(a / 67108864), floor(b / 67108864)
    local a0, b0 = a - a1 * 67108864, b - b1 * 67108864
    local middle = a1 * b0 + a0 * b1
    local carry = floor(middle / 67108864)
    local low = a0 * b0 + (middle - carry * 67108864) * 67108864
    local over = floor(low / 4503599627370496)
    return a1 * b1 + carry + over, low - over * 4503599627370496
  end

  -- Whether a * b <= c * d, exactly. Rounding a product keeps the order, so only products that look alike are looked at closer.
  local function product_fits(a, b, c, d)
    local left, right = a * b, c * d
    if left ~= right then return left < right end
    if left <= 4503599627370496 then return true end
    local left_high, left_low = wide(a, b)
    local right_high, right_low = wide(c, d)
    if left_high ~= right_high then return left_high < right_high end
    return left_low <= right_low
  end

  -- The least n with n * c >= a * b, for a result below 2^52. The estimate is off by a few at most; the bounds are for
  -- numbers that are not ours.
  local function ceil_of(a, b, c)
    local n = floor(a * b / c)
    for _ = 1, 8 do
      if product_fits(a, b, n, c) then break end
      n = n + 1
    end
    for _ = 1, 8 do
      if n <= 0 or not product_fits(a, b, n - 1, c) then break end
      n = n - 1
    end
    return n
  end

