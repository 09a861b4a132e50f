-- Reservations: each has a record under a key of its own beside the first of its counters. Its size depends on the number
-- of counters alone, and it ends by itself. Made when a call first needs it. Mirrors reservation/record.rs.
--
-- Operation  words in the program                                              words in the reply
-- 6 OPEN     the record's key, how long it can be settled (us), what it is     what became of the record (NEW and
--            for (16 bytes), what the caller keeps of the counters, and then   following, below), then as RESERVE
--            as RESERVE
-- 7 CLOSE    the record's key, how (ENDS and following), the mark of that (8   DONE and following
--            bytes), for how long (us), number of counters, for each: key,
--            own key, limit, what it is charged in the end (2^41: as it was)
--
-- Record: state (0 open, 1 ended), opened_us, ends_us, what it is for (16 bytes), the mark of what ended it (8 bytes),
--         number of counters; while it is open for each its incarnation, its slot or mark and what it was charged,
--         then what the caller keeps of the counters

-- @include reservation_words

-- How long an ended record is remembered beyond its end: an hour. `lives` has these texts under negative numbers.
-- @fragment record_life(lasting_us) -> text
text = lives[-lasting_us]
if not text then
    text = string.format('%.0f', ceil((lasting_us + 3600000000) / 1000))
    lives[-lasting_us] = text
end
-- @end

-- @fragment pack_open(lasting_us, body, count, charges, kept) -> record
record = pack_record('>I1I7I7c16c8I1', 0, now, now + lasting_us, body, '\0\0\0\0\0\0\0\0', count) .. charges .. kept
-- @end

-- @fragment pack_charge(incarnation, slot, amount) -> charge
charge = pack_record('>I6I6I5', incarnation, slot, amount)
-- @end

-- @fragment unpack_head(record) -> state, opened_us, ends_us
state, opened_us, ends_us = unpack_record('>I1I7I7', record)
-- @end

-- Unpacks what a record charged the counter at a place.
-- @fragment unpack_charge(record, place) -> incarnation, slot, amount
incarnation, slot, amount = unpack_record('>I6I6I5', record, HEAD - 16 + 17 * place)
-- @end

-- @fragment pack_ended(record, mark) -> ended
ended = '\1' .. string.sub(record, 2, 31) .. mark .. '\0'
-- @end

local function write(key, record, ends_us)
    local life
    -- @inline record_life(ends_us - now) -> life
    redis.call('SET', KEYS[key], record, 'PX', life)
    values[key] = record
end

-- What becomes of a reservation under the id of a record, if its permits are still held.
local function opened_again(record, body)
    if string.sub(record, 16, 31) ~= body then
        return CONFLICT
    end
    local state, opened_us, ends_us
    -- @inline unpack_head(record) -> state, opened_us, ends_us
    if state ~= 0 or now >= ends_us then
        return ENDED + byte(record, HEAD - 1) % 4
    end
    return REPEATED
end

-- OPEN at program[p]: decides, and writes the record if that allows. Returns where the next operation begins.
local function open(p)
    local key, lasting_us, body = program[p + 1], program[p + 2], program[p + 3]
    local record, place = values[key], o
    local opened = NEW
    if record then
        opened = opened_again(record, body)
    end
    o = o + 1
    noted = {}
    local after, granted = decide(p + 5, RESERVE, opened == NEW and 1 or 0)
    if granted > 0 then
        -- @inline pack_open(lasting_us, body, #noted, table.concat(noted), program[p + 4]) -> record
        write(key, record, now + lasting_us)
    elseif opened == NEW then
        opened = REFUSED
    end
    noted = false
    out[place] = opened
    return after
end

-- Charges or gives back what the counters from program[first] on are charged in the end.
local function correct(record, first, count, opened_us)
    for i = 1, count do
        local p = first + 4 * (i - 1)
        local key, l, actual = program[p], program[p + 2], program[p + 3]
        local incarnation, slot, amount
        -- @inline unpack_charge(record, i) -> incarnation, slot, amount
        -- A shadow rule that had no room was never charged; what was only looked at can be.
        local counts = actual ~= amount and actual ~= AS_CHARGED and (incarnation > 0 or amount == 0)
        local counter, limit = counts and counter_of(key, program[p + 1], l), limits[l]
        if counter and actual > amount then
            limit.module.force(counter, limit, actual - amount, o + i)
            counter.changed, dirty[key] = true, true
        elseif counter and limit.module.give_back(counter, limit, incarnation, opened_us, amount, slot, amount - actual) then
            counter.changed, dirty[key] = true, true
        end
    end
end

-- The slots of a record, if all are still held.
local function held_slots(record, first, count)
    local slots = {}
    for i = 1, count do
        local p = first + 4 * (i - 1)
        local limit = limits[program[p + 2]]
        local incarnation, slot, amount
        -- @inline unpack_charge(record, i) -> incarnation, slot, amount
        if limit.algorithm == SLOTS and incarnation > 0 then
            local counter = counter_of(program[p], program[p + 1], program[p + 2])
            if not counter or not limit.module.holds(counter, incarnation, slot) then
                return
            end
            slots[#slots + 1] = {
                counter = counter, limit = limit, incarnation = incarnation, slot = slot, key = program[p],
            }
        end
    end
    return slots
end

local function renew(slots, for_us)
    for _, held in ipairs(slots) do
        held.limit.module.renew(held.counter, held.limit, held.incarnation, held.slot, for_us)
        held.counter.changed, dirty[held.key] = true, true
    end
end

local function end_by(key, how, mark, for_us, first, count)
    local record = values[key]
    if not record or #record < HEAD then
        return UNKNOWN
    end
    local state, opened_us, ends_us
    -- @inline unpack_head(record) -> state, opened_us, ends_us
    if state ~= 0 then
        if how == RENEWS or how == LOOKS then
            return EXPIRED
        end
        return string.sub(record, 32, 39) == mark and AGAIN or OTHERWISE
    end
    if now >= ends_us and how ~= UNDOES then
        return EXPIRED
    end
    if byte(record, HEAD) ~= count then
        return OTHER_COUNTERS
    end
    if how == RENEWS or how == LOOKS then
        local slots = held_slots(record, first, count)
        if not slots then
            return EXPIRED
        end
        if how == LOOKS then
            return DONE
        end
        renew(slots, for_us)
        ends_us = max(ends_us, now + for_us)
        write(key, pack_record('>I1I7I7', 0, opened_us, ends_us) .. string.sub(record, 16), ends_us)
        return DONE
    end
    correct(record, first, count, opened_us)
    if how == UNDOES then
        redis.call('DEL', KEYS[key])
        values[key] = false
    else
        -- It ends when it was to end.
        local ended
        -- @inline pack_ended(record, mark) -> ended
        values[key] = ended
        redis.call('SET', KEYS[key], values[key], 'KEEPTTL')
    end
    return DONE
end

-- CLOSE at program[p]: ends, renews or looks. Returns where the next operation begins.
local function close(p)
    local count = program[p + 5]
    out[o] = end_by(program[p + 1], program[p + 2], program[p + 3], program[p + 4], p + 6, count)
    o = o + 1
    return p + 6 + 4 * count
end

return { open = open, close = close }
