-- Says to a shard that a process lives, answers who else does, and shows whether the shard has lost
-- what it held.
--
-- KEYS[1]: who lives: a sorted set, by when (in ms) each was last heard of
-- KEYS[2]: the guard: epoch (a name that goes when all else goes), and when the one before was found
--          lost, in us (0: not known), with dots between
-- ARGV[1]: this process
-- ARGV[2]: after how many ms without a word it is gone
-- ARGV[3]: the name of a new epoch, where there is none
-- ARGV[4]: the time in us, where scripts may not ask for it; else 0
-- ARGV[5]: the epoch that this process has heard of last; empty: none
-- Returns: the guard, and all that live

local gone_ms = tonumber(ARGV[2])
local now_us = tonumber(ARGV[4])
if now_us == 0 then
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
end
local now_ms = math.floor(now_us / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now_ms - gone_ms))
-- Heard of before the clock stepped back.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now_ms + gone_ms), '+inf')
redis.call('PEXPIRE', KEYS[1], gone_ms)

local before = redis.call('GET', KEYS[2])
local epoch, lost = string.match(before or '', '^(%x+)%.(%d+)$')
local lost_us = tonumber(lost or 0)
epoch = epoch or ARGV[3]
-- Whoever knew an earlier epoch knows that there was a loss; the first to tell dates it.
if lost_us == 0 and ARGV[5] ~= '' and ARGV[5] ~= epoch then
    lost_us = now_us
end
-- The clock stepped back: nobody is to wait for it to catch up.
if lost_us > now_us + 1000000 then
    lost_us = now_us
end
local guard = string.format('%s.%.0f', epoch, lost_us)
if guard ~= before then
    redis.call('SET', KEYS[2], guard)
end
return { guard, redis.call('ZRANGE', KEYS[1], 0, -1) }
