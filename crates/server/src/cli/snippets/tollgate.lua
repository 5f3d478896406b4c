-- Asks Tollgate about a request and sets txn.tollgate_status (0 if there is no answer), _retry, _limit and _policy.
-- Every header of the client is sent, so that rules can read it.
local hop = { ["host"] = true, ["connection"] = true, ["content-length"] = true, ["transfer-encoding"] = true,
  ["keep-alive"] = true, ["upgrade"] = true, ["te"] = true, ["expect"] = true, ["tollgate-token"] = true }

core.register_action("tollgate", { "http-req" }, function(txn, url)
  local headers = {}
  for name, values in pairs(txn.http:req_get_headers()) do
    if not hop[name] then
      local list = {}
      for index = 0, #values do
        if values[index] then list[#list + 1] = values[index] end
      end
      headers[name] = list
    end
  end
  local target, query = txn.f:path(), txn.f:query()
  if query and query ~= "" then target = target .. "?" .. query end
  headers["x-forwarded-method"] = { txn.f:method() }
  headers["x-forwarded-uri"] = { target }
  headers["x-forwarded-host"] = { txn.f:req_hdr("host") or "" }
  headers["x-forwarded-proto"] = { txn.f:ssl_fc() == 1 and "https" or "http" }
  headers["x-forwarded-for"] = { txn.f:src() }
  -- If Tollgate requires tokens: headers["tollgate-token"] = { "..." }
  local answer = core.httpclient():get({ url = url, headers = headers, timeout = 50 })
  txn:set_var("txn.tollgate_status", answer and answer.status or 0)
  local kept = { tollgate_retry = "retry-after", tollgate_limit = "ratelimit", tollgate_policy = "ratelimit-policy" }
  for variable, name in pairs(kept) do
    local value = answer and answer.headers and answer.headers[name]
    if value then txn:set_var("txn." .. variable, value[0]) end
  end
end, 1)
