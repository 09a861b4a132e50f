-- Says to a shard that a process lives, answers who else does, and shows whether the shard has lost
-- what it held.
--
-- KEYS[1]: who lives: a sorted set, by when (in ms) each was last heard of
-- KEYS[2]: the epoch: a name that goes when all else goes
-- ARGV[1]: this process
-- ARGV[2]: after how many ms without a word it is gone
-- ARGV[3]: the name of a new epoch, where there is none
-- ARGV[4]: the time in ms, where scripts may not ask for it; else 0
-- Returns: the epoch, and all that live

local gone_ms = tonumber(ARGV[2])
local now_ms = tonumber(ARGV[4])
if now_ms == 0 then
    local time = redis.call('TIME')
    now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now_ms - gone_ms))
-- Heard of before the clock stepped back.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now_ms + gone_ms), '+inf')
redis.call('PEXPIRE', KEYS[1], gone_ms)
redis.call('SET', KEYS[2], ARGV[3], 'NX')
return { redis.call('GET', KEYS[2]), redis.call('ZRANGE', KEYS[1], 0, -1) }
