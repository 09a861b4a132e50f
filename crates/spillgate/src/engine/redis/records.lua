-- The records of reservations: each lies under a key of its own beside the first of its tiers, in O(1)
-- bytes, and ends by itself. Joined to check.lua, and run when a call first asks for one.
--
-- The same as reservation/record.rs, name by name.
--
-- Record: state (0 open, 1 ended), when it was opened, when it ends, what it is for (16 bytes), what ended
--         it (8 bytes), how many tiers; and while it is open for each its incarnation, its slot or mark and
--         what it was charged, then what the caller keeps of the tiers, as it is

local HEAD, CHARGE_BYTES = 40, 17
-- ENDED and the kind of what ended it, which are the last two bits of that; none for an expired record.
local NEW, REPEATED, CONFLICT, REFUSED, ENDED = 0, 1, 2, 3, 4
local DONE, AGAIN, EXPIRED, UNKNOWN, OTHERWISE, OTHER_TIERS = 0, 1, 2, 3, 4, 5
local ENDS, UNDOES, RENEWS, LOOKS = 0, 1, 2, 3
-- Leaves a tier as it was charged.
local AS_CHARGED = 2199023255552
local REMEMBERED_US = 3600000000
local NOT_ENDED = string.rep('\0', 8)

local function write(key, record, ends_us)
    local life_ms = ceil((ends_us - now + REMEMBERED_US) / 1000)
    redis.call('SET', KEYS[key], record, 'PX', string.format('%.0f', life_ms))
    values[key] = record
end

-- What a reservation under the id of a record is answered, as far as its permits are still held.
local function opened_again(record, body)
    if string.sub(record, 16, 31) ~= body then
        return CONFLICT
    end
    local state, _, ends_us = struct.unpack('>I1I7I7', record)
    if state ~= 0 or now >= ends_us then
        return ENDED + byte(record, HEAD - 1) % 4
    end
    return REPEATED
end

-- Decides from program[p] on, and writes the record if that allows: key, lasting_us, body, what the caller
-- keeps, and a decision. Where the next operation begins.
local function open(p)
    local key, lasting_us, body = program[p + 1], program[p + 2], program[p + 3]
    local record, place = values[key], o
    local opened = NEW
    if record then
        opened = opened_again(record, body)
    end
    o = o + 1
    noted = {}
    local after, fits = decide(p + 5, RESERVE, opened == NEW)
    if opened == NEW and fits then
        local head = struct.pack('>I1I7I7', 0, now, now + lasting_us)
        write(key, head .. body .. NOT_ENDED .. string.char(#noted) .. table.concat(noted)
            .. program[p + 4], now + lasting_us)
    elseif opened == NEW then
        opened = REFUSED
    end
    noted = false
    out[place] = opened
    return after
end

-- What a record charged the tier at a place: incarnation, slot, amount.
local function charged(record, i)
    return struct.unpack('>I6I6I5', record, HEAD + 1 + (i - 1) * CHARGE_BYTES)
end

-- The tiers at program[first], each: key, own key, limit, and what it is charged in the end.
local function correct(record, first, count, opened_us)
    for i = 1, count do
        local p = first + 4 * (i - 1)
        local key, l, actual = program[p], program[p + 2], program[p + 3]
        local incarnation, slot, amount = charged(record, i)
        -- A shadow rule that had no room was never charged; what was only looked at can be.
        local counts = actual ~= amount and actual ~= AS_CHARGED and (incarnation > 0 or amount == 0)
        local cell, limit = counts and cell_of(key, program[p + 1], l), limits[l]
        if cell and actual > amount then
            limit.module.force(cell, limit, actual - amount, o + i)
            cell.changed, dirty[key] = true, true
        elseif cell and limit.module.give_back(cell, limit, incarnation, opened_us, amount, slot, amount - actual) then
            cell.changed, dirty[key] = true, true
        end
    end
end

-- The slots of a record, if all are still held.
local function held_slots(record, first, count)
    local slots = {}
    for i = 1, count do
        local p = first + 4 * (i - 1)
        local limit = limits[program[p + 2]]
        local incarnation, slot = charged(record, i)
        if limit.algorithm == SLOTS and incarnation > 0 then
            local cell = cell_of(program[p], program[p + 1], program[p + 2])
            if not cell or not limit.module.holds(cell, incarnation, slot) then
                return
            end
            slots[#slots + 1] = { cell = cell, limit = limit, incarnation = incarnation, slot = slot, key = program[p] }
        end
    end
    return slots
end

local function renew(slots, for_us)
    for _, held in ipairs(slots) do
        held.limit.module.renew(held.cell, held.limit, held.incarnation, held.slot, for_us)
        held.cell.changed, dirty[held.key] = true, true
    end
end

local function end_by(key, how, mark, for_us, first, count)
    local record = values[key]
    if not record or #record < HEAD then
        return UNKNOWN
    end
    local state, opened_us, ends_us = struct.unpack('>I1I7I7', record)
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
        return OTHER_TIERS
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
        write(key, struct.pack('>I1I7I7', 0, opened_us, ends_us) .. string.sub(record, 16), ends_us)
        return DONE
    end
    correct(record, first, count, opened_us)
    if how == UNDOES then
        redis.call('DEL', KEYS[key])
        values[key] = false
    else
        -- It ends when it was to end.
        values[key] = struct.pack('>I1I7I7', 1, opened_us, ends_us) .. string.sub(record, 16, 31) .. mark
            .. string.char(0)
        redis.call('SET', KEYS[key], values[key], 'KEEPTTL')
    end
    return DONE
end

-- Ends, renews or looks from program[p] on: key, how, mark, for_us, how many tiers, and those. Where the next
-- operation begins.
local function close(p)
    local count = program[p + 5]
    out[o] = end_by(program[p + 1], program[p + 2], program[p + 3], program[p + 4], p + 6, count)
    o = o + 1
    return p + 6 + 4 * count
end

return { open = open, close = close }
