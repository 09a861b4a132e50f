-- Reservations. Each has a record under a key of its own, beside the first of its counters. The record's size
-- depends only on the number of counters, and its key expires. Created when a call first needs it. Mirrors
-- reservation/record.rs.
--
-- Operation  words in the program                                              words in the reply
-- 6 OPEN     the record's key, how long it can be settled (us), a hash of      the result of the record (NEW and
--            the request (16 bytes), the caller's text of the counters, then   following, below), then as RESERVE
--            as RESERVE
-- 7 CLOSE    the record's key, how (ENDS and following), the mark of this      DONE and following
--            ending (8 bytes), for how long (us), number of counters, for
--            each: key, own key, limit, its final charge (2^41: as charged; to
--            renew or look, 0: its permit may be lost)
--
-- Record: state (0 open, 1 ended), opened_us, ends_us, the hash of the request (16 bytes), the mark of its ending
--         (8 bytes), number of counters; while it is open, for each its incarnation, its slot or mark, and its charge,
--         then the caller's text of the counters

-- @include reservation_words

-- Records the new value of a record, which is written with the counters. After its end it is remembered for an hour.
-- @fragment write_record(key, record, lasting_us)
values[key] = record
fresh[key] = lasting_us + 3600000000
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

-- Unpacks the charge of the counter at a place in a record.
-- @fragment unpack_charge(record, place) -> incarnation, slot, amount
incarnation, slot, amount = unpack_record('>I6I6I5', record, HEAD - 16 + 17 * place)
-- @end

-- Ends a record. Its key keeps its life, also one that this call is still to write.
-- @fragment end_record(key, record, mark)
values[key] = '\1' .. string.sub(record, 2, 31) .. mark .. '\0'
fresh[key] = fresh[key] or false
-- @end

-- Returns the result of opening a reservation whose id has a record.
local function opened_again(record, body)
    if string.sub(record, 16, 31) ~= body then
        return CONFLICT
    end
    local state, opened_us, ends_us
    -- @inline unpack_head(record) -> state, opened_us, ends_us
    if state ~= 0 or now >= ends_us then
        -- The last two bits of the mark show how it ended; they are 0 if it expired.
        return ENDED + byte(record, HEAD - 1) % 4
    end
    return REPEATED
end

-- OPEN at program[p]: decides, and writes the record if that allows. Returns the index of the next operation.
local function open(p)
    local key, lasting_us, body = program[p + 1], program[p + 2], program[p + 3]
    local record, place = values[key], o
    local opened = record and opened_again(record, body) or NEW
    o = o + 1
    noted = {}
    -- Anything but a new record only reads the counters: a repeated reservation is not charged again.
    local after, granted = decide(p + 5, RESERVE, opened == NEW and 1 or 0)
    if granted > 0 then
        -- @inline pack_open(lasting_us, body, #noted, table.concat(noted), program[p + 4]) -> record
        -- @inline write_record(key, record, lasting_us)
    elseif opened == NEW then
        opened = REFUSED
    end
    noted = false
    out[place] = opened
    return after
end

-- Brings the counters from program[first] on to their final charge, by force or by refund.
local function correct(record, first, count, opened_us)
    for i = 1, count do
        local p = first + 4 * (i - 1)
        local actual = program[p + 3]
        local incarnation, slot, amount
        -- @inline unpack_charge(record, i) -> incarnation, slot, amount
        -- A shadow rule that had no room was never charged, so it has nothing to correct. A charge of 0 can
        -- be corrected.
        local counter, limit, key
        if actual ~= amount and actual ~= AS_CHARGED and (incarnation > 0 or amount == 0) then
            counter, limit, key = counter_at(p)
        end
        if counter and actual > amount then
            -- State that was written under other numbers since then stays: under these, use above them would be erased.
            if not counter.gone_after_us then
                limit.module.force(counter, limit, actual - amount, o + i)
                counter.changed, dirty[key] = true, true
            end
        elseif counter and limit.module.refund(counter, limit, incarnation, opened_us, amount, slot, amount - actual) then
            counter.changed, dirty[key] = true, true
        end
    end
end

-- Extends the permits of a record by `for_us`, or only looks at them if that is 0. Returns whether all are held that may
-- not be lost.
local function renew(record, first, count, for_us)
    local all_held = true
    for i = 1, count do
        local p = first + 4 * (i - 1)
        local incarnation, slot, amount
        -- @inline unpack_charge(record, i) -> incarnation, slot, amount
        if limits[program[p + 2]].algorithm == SLOTS and incarnation > 0 then
            local counter, limit, key = counter_at(p)
            if counter and limit.module.renew(counter, limit, incarnation, slot, for_us) then
                if for_us > 0 then
                    counter.changed, dirty[key] = true, true
                end
            elseif program[p + 3] == AS_CHARGED then
                all_held = false
            end
        end
    end
    return all_held
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
    -- The caller divided the counters otherwise than the record. It reads the record, and tries again.
    if byte(record, HEAD) ~= count then
        return OTHER_COUNTERS
    end
    if how == RENEWS or how == LOOKS then
        if not renew(record, first, count, 0) then
            return EXPIRED
        elseif how == LOOKS then
            return DONE
        end
        renew(record, first, count, for_us)
        ends_us = max(ends_us, now + for_us)
        record = pack_record('>I1I7I7', 0, opened_us, ends_us) .. string.sub(record, 16)
        -- @inline write_record(key, record, ends_us - now)
        return DONE
    end
    correct(record, first, count, opened_us)
    if how == UNDOES then
        values[key], fresh[key] = false, false
    else
        -- @inline end_record(key, record, mark)
    end
    return DONE
end

-- CLOSE at program[p]: ends, renews or looks. Returns the index of the next operation.
local function close(p)
    local count = program[p + 5]
    out[o] = end_by(program[p + 1], program[p + 2], program[p + 3], program[p + 4], p + 6, count)
    o = o + 1
    return p + 6 + 4 * count
end

return { [OPEN] = open, [CLOSE] = close }
