-- Reports to a shard that an instance is alive, counts the live instances by kind, sums their load, and keeps the
-- shard's guard, which shows whether the shard lost its data.
--
-- KEYS[1]: the live instances: a sorted set, scored by the last heartbeat in ms
-- KEYS[2]: the guard: epoch (a name that is lost with all other data), a dot, and when the one before was found lost,
--          in us (0: unknown)
-- KEYS[3]: the load of each live instance: a hash, from the id to the decisions of the last minute: how many allowed
--          and how many denied, with a dot between
-- ARGV[1]: this instance: an id of 16 digits, a colon, and its kind: the settings that it must share with others.
--          Empty: an onlooker
-- ARGV[2]: after how many ms without a heartbeat an instance is gone
-- ARGV[3]: the name of a new epoch, if there is none
-- ARGV[4]: the epoch that this instance knew last; empty: none
-- ARGV[5]: the load of this instance; empty: as before
-- Returns: the guard; the live instances: each kind, then how many are of it; and the load: how many instances report
--          it, allowed, denied

local gone_ms = tonumber(ARGV[2])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
if ARGV[1] ~= '' then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms), ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now_ms - gone_ms))
-- Heartbeats from before the clock stepped back.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now_ms + gone_ms), '+inf')
redis.call('PEXPIRE', KEYS[1], gone_ms)
local live = redis.call('ZRANGE', KEYS[1], 0, -1)
local kinds, place, is_live = {}, {}, {}
for _, instance in ipairs(live) do
    is_live[string.sub(instance, 1, 16)] = true
    -- The kind follows the id and its colon.
    local kind = string.sub(instance, 18)
    if not place[kind] then
        place[kind] = #kinds + 2
        kinds[#kinds + 1] = kind
        kinds[#kinds + 1] = 0
    end
    kinds[place[kind]] = kinds[place[kind]] + 1
end

if ARGV[1] ~= '' and ARGV[5] ~= '' then
    redis.call('HSET', KEYS[3], string.sub(ARGV[1], 1, 16), ARGV[5])
end
local reporting, all_allowed, all_denied = 0, 0, 0
for _, id in ipairs(redis.call('HKEYS', KEYS[3])) do
    if is_live[id] then
        local allowed, denied = string.match(redis.call('HGET', KEYS[3], id), '^(%d+)%.(%d+)$')
        reporting = reporting + 1
        all_allowed, all_denied = all_allowed + (allowed or 0), all_denied + (denied or 0)
    else
        redis.call('HDEL', KEYS[3], id)
    end
end
redis.call('PEXPIRE', KEYS[3], gone_ms)

local before = redis.call('GET', KEYS[2])
local epoch, lost = string.match(before or '', '^(%x+)%.(%d+)$')
local lost_us = tonumber(lost or 0)
epoch = epoch or ARGV[3]
-- An instance that knew an earlier epoch shows that the data was lost. The first such heartbeat dates the loss.
if lost_us == 0 and ARGV[4] ~= '' and ARGV[4] ~= epoch then
    lost_us = now_us
end
-- The clock stepped back: counters must not stay used up until it catches up.
if lost_us > now_us + 1000000 then
    lost_us = now_us
end

local guard = string.format('%s.%.0f', epoch, lost_us)
if guard ~= before then
    redis.call('SET', KEYS[2], guard)
end
return { guard, kinds, { reporting, all_allowed, all_denied } }
