-- Reports to the fleet's record that an instance is alive. The cost does not depend on the number of instances. Most
-- calls only say so and learn the version of the changes, since this is all that an idle fleet asks of its store.
--
-- KEYS[1]: the live instances: a sorted set, scored by the second of the last beat
-- KEYS[2]: those of them with the settings and the policy of this instance, likewise
-- KEYS[3]: what each instance says of itself: a hash from its id
-- KEYS[4]: the runtime changes, whose field 'v' is their version
-- KEYS[5]: the shard's guard; absent on a Cluster, where the guard may be in another slot
-- ARGV[1]: this instance's id; empty: an onlooker, which is not counted
-- ARGV[2]: what it says of itself; empty: as before
-- ARGV[3]: after how many seconds without a beat an instance is gone
-- ARGV[4]: 1 to count the instances as well; 2 to remove what is left of those that are gone, too. One caller learns of
--   each of these, so that one reports it
-- Returns: the time in us; the version of the runtime changes, or ''; the guard, or ''. If it counts, as it always does
--   for an instance that the store did not know, also how many instances are alive, how many of them have these settings
--   and this policy, and what the instances that were removed said of themselves, of at most 20

local call = redis.call
local time = call('TIME')
local now = time[1]

-- Set if the store did not know this instance: it is new, or the store lost its data.
local is_new = false

if ARGV[1] ~= '' then
    is_new = call('ZADD', KEYS[1], now, ARGV[1]) == 1
    if ARGV[2] ~= '' then
        is_new = call('HSET', KEYS[3], ARGV[1], ARGV[2]) == 1 or is_new
    end
end

local reply = {
    now * 1000000 + time[2],
    call('HMGET', KEYS[4], 'v')[1] or '',
    KEYS[5] and call('GET', KEYS[5]) or '',
}
if ARGV[4] == '0' and not is_new then
    return reply
end

local oldest, newest = now - ARGV[3], now + ARGV[3]
if ARGV[1] ~= '' then
    is_new = call('ZADD', KEYS[2], now, ARGV[1]) == 1 or is_new
end
local gone = {}
if ARGV[4] == '2' then
    -- The second range has beats from before the clock stepped back.
    for _, range in ipairs({ { '-inf', '(' .. oldest }, { '(' .. newest, '+inf' } }) do
        for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[1], range[1], range[2])) do
            -- One that stopped in order has removed it.
            gone[#gone + 1] = #gone < 20 and call('HGET', KEYS[3], id) or nil
            call('HDEL', KEYS[3], id)
        end
        call('ZREMRANGEBYSCORE', KEYS[1], range[1], range[2])
        call('ZREMRANGEBYSCORE', KEYS[2], range[1], range[2])
    end
end
if is_new or ARGV[4] == '2' then
    -- Longer than until the next call of any instance that does this.
    for place = 1, 3 do
        call('PEXPIRE', KEYS[place], 600000)
    end
end

reply[4] = call('ZCOUNT', KEYS[1], oldest, newest)
reply[5] = call('ZCOUNT', KEYS[2], oldest, newest)
reply[6] = gone
return reply
