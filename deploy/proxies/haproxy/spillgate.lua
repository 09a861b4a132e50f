-- Forward auth for HAProxy 2.6 or later, built with Lua: `http-request lua.spillgate fail-open` or `fail-closed`.
-- Asks the frontend "spillgate" of the same HAProxy, whose backend has the time-outs and the connections.

local url = "http://127.0.0.1:8001/v1/auth"

-- Belongs to one connection, or is set below.
local dropped = {
  host = true, connection = true, ["content-length"] = true, ["transfer-encoding"] = true, expect = true,
  upgrade = true, te = true, trailer = true, ["keep-alive"] = true, ["proxy-connection"] = true, forwarded = true,
  ["x-forwarded-for"] = true, ["x-forwarded-method"] = true, ["x-forwarded-host"] = true, ["x-forwarded-uri"] = true,
}

-- HAProxy's own client takes about 96 fields (tune.http.maxhdr is 101). With more, HAProxy 2.6 crashes, or its answer has no
-- mark and fail-open lets the request pass.
local fields_max = 90

-- Returns the fields to ask with; nil if the client sent too many.
local function question(txn)
  local headers, count = {}, 0
  for name, values in pairs(txn.http:req_get_headers()) do
    if not dropped[name] then
      local list = {}
      for index, value in pairs(values) do
        list[index + 1] = value
        count = count + 1
      end
      headers[name] = list
    end
  end
  if count > fields_max then
    return nil
  end
  headers["x-forwarded-for"] = { txn.f:src() }
  headers["x-forwarded-method"] = { txn.f:method() }
  headers["x-forwarded-host"] = { txn.f:req_fhdr("host") or "" }
  headers["x-forwarded-uri"] = { txn.f:url() }
  return headers
end

local function refuse(txn, status, headers, body)
  local reply = txn:reply()
  reply:set_status(status)
  for name, value in pairs(headers) do
    reply:add_header(name, value)
  end
  reply:set_body(body)
  txn:done(reply)
end

local function refuse_large_head(txn)
  refuse(txn, 431, {}, "Request header fields too large\n")
end

core.register_action("spillgate", { "http-req" }, function(txn, when_away)
  local fields = question(txn)
  if not fields then
    return refuse_large_head(txn)
  end
  local answer = core.httpclient():get { url = url, headers = fields, timeout = 500 }
  local function field(name)
    local values = answer.headers and answer.headers[name]
    return values and values[0]
  end
  -- The backend marks what Spillgate answered. An error of HAProxy itself has no mark.
  if not field("x-spillgate-answered") then
    if answer.status >= 400 and answer.status < 500 then
      -- The client's head and our fields together are too large for HAProxy.
      refuse_large_head(txn)
    elseif when_away ~= "fail-open" then
      refuse(txn, 503, { ["retry-after"] = "1" }, "Service unavailable\n")
    end
    return
  end
  local limit, policy = field("ratelimit"), field("ratelimit-policy")
  if answer.status >= 200 and answer.status < 300 then
    if limit then
      txn:set_var("txn.ratelimit", limit)
    end
    if policy then
      txn:set_var("txn.ratelimit_policy", policy)
    end
    return
  end
  local headers = {}
  for _, name in ipairs { "content-type", "retry-after", "ratelimit", "ratelimit-policy" } do
    headers[name] = field(name)
  end
  refuse(txn, answer.status, headers, answer.body or "")
end, 1)
