-- Sends POST /v1/check with one of 100,000 keys. Every request except the first of a key is refused.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  local body = string.format('{"key":"client:%d","limit":"1/day"}', math.random(100000))
  return wrk.format(nil, nil, nil, body)
end
