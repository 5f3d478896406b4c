-- Exact comparisons and quotients of products that exceed the exact range of a double.

local floor = math.floor

-- Returns the product of two integers below 2^52 as two 52-bit numbers: upper half, lower half.
local function wide(a, b)
  local a1, b1 = floor(a / 67108864), floor(b / 67108864)
  local a0, b0 = a - a1 * 67108864, b - b1 * 67108864
  local middle = a1 * b0 + a0 * b1
  local carry = floor(middle / 67108864)
  local low = a0 * b0 + (middle - carry * 67108864) * 67108864
  local over = floor(low / 4503599627370496)
  return a1 * b1 + carry + over, low - over * 4503599627370496
end

-- Returns whether a * b <= c * d, exactly. Rounding never reverses the order of two products, so a full comparison is needed only
-- if both are rounded to the same number.
local function product_fits(a, b, c, d)
  local left, right = a * b, c * d
  if left ~= right then return left < right end
  if left <= 4503599627370496 then return true end
  local left_high, left_low = wide(a, b)
  local right_high, right_low = wide(c, d)
  if left_high ~= right_high then return left_high < right_high end
  return left_low <= right_low
end

-- Returns the smallest n with n * c >= a * b, if n is below 2^52. The first estimate is off by at most a few units. The
-- loops are bounded because a damaged value may contain any numbers.
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

-- Returns the quotient a * b / c, rounded down, and the remainder, if the quotient is below 2^52.
local function divided(a, b, c)
  local n = ceil_of(a, b, c)
  if not product_fits(n, c, a, b) then n = n - 1 end
  local _, product = wide(a, b)
  local _, part = wide(n, c)
  return n, (product - part) % 4503599627370496
end

return { product_fits = product_fits, ceil_of = ceil_of, divided = divided }
