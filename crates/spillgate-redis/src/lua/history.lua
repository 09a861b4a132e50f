-- Adds what one instance decided in one minute to the history of the fleet.
--
-- An instance sends its minutes in order, and a minute again after a lost reply, so the last minute of each instance is
-- kept beside the counts, and expires with them.
--
-- KEYS[1]: the counts of one hour: a string with a block for each of its 60 minutes. A block has the facts of the minute,
--          then the counts of each slot. All are numbers of 4 bytes, the highest byte first
-- KEYS[2]: the slot of each rule: a hash from its name; slot 0 counts all rules without a slot
-- KEYS[3]: the last minute of each instance: a hash from its id
-- ARGV[1]: this instance's id
-- ARGV[2]: the minute of the hour
-- ARGV[3]: the life of the hour, in ms
-- ARGV[4]: the number of slots, without slot 0. The last 16 are for rules that deny, or would in shadow
-- ARGV[5]: the facts of the minute
-- ARGV[6] and so on: name and counts of each rule; a rule without a name counts in slot 0
-- Returns: 1 if the minute was added, 0 if it had been before

local call = redis.call
local minute = tonumber(ARGV[2])
local last = call('HGET', KEYS[3], ARGV[1])
if last and tonumber(last) >= minute then
    return 0
end

local FACTS, FACTS_BYTES = '>' .. string.rep('I4', 32), 128
local COUNTS, COUNTS_BYTES = '>' .. string.rep('I4', 8), 32
-- The second to the seventh number of a rule are its denials by reason.
local NO_DENIAL = string.rep('\0', 24)
local slots = tonumber(ARGV[4])
local size = FACTS_BYTES + COUNTS_BYTES * (slots + 1)

local function sum(format, one, other)
    local words, more = { struct.unpack(format, one) }, { struct.unpack(format, other) }
    -- Behind the words is the place at which a next one would begin.
    words[#words] = nil
    for place, word in ipairs(words) do
        words[place] = math.min(word + more[place], 4294967295)
    end
    return struct.pack(format, unpack(words))
end

local block = call('GETRANGE', KEYS[1], minute * size, (minute + 1) * size - 1)
if #block < size then
    -- A string that is written whole takes half the room of one that grows.
    call('SETRANGE', KEYS[1], 60 * size - 1, '\0')
    block = string.rep('\0', size)
end
local parts = { sum(FACTS, string.sub(block, 1, FACTS_BYTES), ARGV[5]) }
for slot = 0, slots do
    local first = FACTS_BYTES + COUNTS_BYTES * slot
    parts[slot + 2] = string.sub(block, first + 1, first + COUNTS_BYTES)
end

local used = call('HLEN', KEYS[2])
for place = 6, #ARGV, 2 do
    local rule, slot = ARGV[place], 0
    if rule ~= '' then
        slot = tonumber(call('HGET', KEYS[2], rule)) or 0
        if slot < 0 or slot > slots or slot % 1 ~= 0 then
            slot = 0
        end
        local denies = string.sub(ARGV[place + 1], 5, 28) ~= NO_DENIAL
        if slot == 0 and used < (denies and slots or slots - 16) then
            used = used + 1
            slot = used
            call('HSET', KEYS[2], rule, slot)
        end
    end
    parts[slot + 2] = sum(COUNTS, parts[slot + 2], ARGV[place + 1])
end

call('SETRANGE', KEYS[1], minute * size, table.concat(parts))
call('HSET', KEYS[3], ARGV[1], minute)
for _, key in ipairs(KEYS) do
    call('PEXPIRE', key, ARGV[3])
end
return 1
