-- Keeps the guard of a shard, which shows whether the shard lost its data, and the kinds of instances that use it.
--
-- KEYS[1]: the guard: epoch (a name that is lost with all other data), a dot, and when the one before was found lost,
--          in us (0: unknown)
-- KEYS[2]: the kinds: a sorted set of the settings that all must share, scored by when an instance of them was here,
--          in ms
-- ARGV[1]: the name of a new epoch, if there is none
-- ARGV[2]: the epoch that this instance knew last; empty: none
-- ARGV[3]: the kind of this instance; empty: an onlooker
-- ARGV[4]: after how many ms a kind is gone
-- Returns: the guard; the kinds

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local life_ms = tonumber(ARGV[4])
if ARGV[3] ~= '' then
    redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms), ARGV[3])
    redis.call('PEXPIRE', KEYS[2], life_ms)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now_ms - life_ms))
redis.call('ZREMRANGEBYSCORE', KEYS[2], string.format('(%.0f', now_ms + life_ms), '+inf')

local before = redis.call('GET', KEYS[1])
local epoch, lost = string.match(before or '', '^(%x+)%.(%d+)$')
local lost_us = tonumber(lost or 0)
epoch = epoch or ARGV[1]
-- An instance that knew an earlier epoch shows that the data was lost. The first such call dates the loss.
if lost_us == 0 and ARGV[2] ~= '' and ARGV[2] ~= epoch then
    lost_us = now_us
end
-- The clock stepped back: counters must not stay used up until it catches up.
if lost_us > now_us + 1000000 then
    lost_us = now_us
end

local guard = string.format('%s.%.0f', epoch, lost_us)
if guard ~= before then
    redis.call('SET', KEYS[1], guard)
end
return { guard, redis.call('ZRANGE', KEYS[2], 0, -1) }
