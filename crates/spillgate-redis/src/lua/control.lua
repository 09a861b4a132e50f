-- The runtime changes of the fleet: stores the entries of the caller, and returns entries that it has not seen.
--
-- Of two versions of an entry the newer one stays, by (time, random), so entries may arrive in any order and
-- more than once. The revision counts the entries that were stored, so a reader gets only those that it has not
-- seen. The epoch names all changes: another epoch means that they began anew. The nonce of the last writer
-- distinguishes two histories of one epoch, which a failover that loses writes can make.
--
-- KEYS[1]: a hash: 'v' is epoch:revision:nonce; each other field is an entry's id (16 bytes), its value
--          time_us, random, forget_at_us (0: never), 8 bytes each, and the sealed content
-- KEYS[2]: a sorted set: each entry's id, scored by the revision that brought it
-- ARGV[1]: the version that the caller has seen, or nothing
-- ARGV[2]: the nonce of this call, and the epoch if the changes begin now
-- ARGV[3]: the most entries of the record
-- ARGV[4]: how long an entry is kept after its end while there is room, in us
-- ARGV[5]: how many entries follow: id and value for each; then ids to delete if these entries have ended
-- Returns: the time in us; the version that the caller has seen now, '' if there are no changes; how many entries
--   did not fit; 1 if what follows begins with the first entry, else 0; then id and value of each entry that the
--   caller has not seen, the oldest first. If there are more than fit one reply, the version is that of the last.

local entries, revisions = KEYS[1], KEYS[2]
local entries_max = tonumber(ARGV[3])
local kept_us = tonumber(ARGV[4])
local written_last = 5 + 2 * tonumber(ARGV[5])
-- A reply of so many entries takes less than 1 ms.
local page = 128
local call = redis.call

local function split(version)
    local epoch, revision = string.match(version, '^(%d+):(%d+):')
    return epoch, tonumber(revision) or 0
end
local seen_epoch, since = split(ARGV[1])

local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local version = call('HGET', entries, 'v')
local epoch, revision = ARGV[2], 0
local changed = false
if version and call('ZCARD', revisions) == call('HLEN', entries) - 1 then
    epoch, revision = split(version)
    -- Another history has reached the same revision, so what the caller has seen last may be lost.
    if since == revision and ARGV[1] ~= version then
        seen_epoch = nil
    end
elseif call('EXISTS', entries, revisions) > 0 then
    -- One of the two keys was evicted. The rest has a new epoch, so every instance reads it anew.
    changed = true
    call('DEL', revisions)
    for _, id in ipairs(call('HKEYS', entries)) do
        if #id == 16 then
            revision = revision + 1
            call('ZADD', revisions, revision, id)
        elseif id ~= 'v' then
            call('HDEL', entries, id)
        end
    end
end

-- First, since they make room.
for place = written_last + 1, #ARGV do
    local known = call('HGET', entries, ARGV[place])
    local forget_at_us = known and struct.unpack('>I8', known, 17) or 0
    if forget_at_us > 0 and forget_at_us - kept_us <= now_us then
        call('HDEL', entries, ARGV[place])
        call('ZREM', revisions, ARGV[place])
    end
end

local count = call('ZCARD', revisions)
local refused = 0
for place = 6, written_last, 2 do
    local id, value = ARGV[place], ARGV[place + 1]
    local time_us, random, forget_at_us = struct.unpack('>I8I8I8', value)
    local known = call('HGET', entries, id)
    local newer = true
    if known then
        local known_time_us, known_random = struct.unpack('>I8I8', known)
        newer = time_us > known_time_us or (time_us == known_time_us and random > known_random)
    end
    if newer and (forget_at_us == 0 or forget_at_us > now_us) then
        if not known and count >= entries_max then
            refused = refused + 1
        else
            revision, changed = revision + 1, true
            count = known and count or count + 1
            call('HSET', entries, id, value)
            call('ZADD', revisions, revision, id)
        end
    end
end

if changed then
    version = string.format('%s:%d:%s', epoch, revision, ARGV[2])
    call('HSET', entries, 'v', version)
end

local answer = { now_us, version or '', refused, 0 }
if version then
    if seen_epoch ~= epoch or since > revision then
        since, answer[4] = 0, 1
    end
    local ids = call('ZRANGEBYSCORE', revisions, string.format('(%d', since), '+inf', 'LIMIT', 0, page)
    for _, id in ipairs(ids) do
        answer[#answer + 1] = id
        answer[#answer + 1] = call('HGET', entries, id)
    end
    local last = #ids == page and tonumber(call('ZSCORE', revisions, ids[page]))
    if last and last < revision then
        answer[2] = string.format('%s:%d:', epoch, last)
    end
end
return answer
