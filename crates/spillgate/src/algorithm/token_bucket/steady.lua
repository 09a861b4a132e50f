-- Decisions over token buckets in their steady state, without a cell for each tier: no record yet, or
-- one that was written under the very numbers that are asked for; no receipt, no shadow rule, no clock
-- behind. Most are of this kind, and get the same answers as from token_bucket.lua.
--
-- One pass over the tiers reads, judges and answers each as if all had room, which most decisions have, and packs
-- what it would be then; it is put right where they had not. Each word of Lua counts here: what a tier takes is
-- nearly all its own.

-- The bounds of what a short record holds: of a count that leaves no parts of a us, and of one that does; and of any.
local NAMES, COUNTS, PART_COUNTS, LONG_COUNTS = 15, 65536, 256, 4294967296
local LONG, PART = 1, 7

-- What records of a limit begin with, by where the limit begins, but for the instant; the limit's numbers: burst, the
-- most that a record holds, n, d, count, that count where a whole one is short; then the bytes of a record, what
-- its tokens in use stay below, and its period where records are long. False for a limit of another kind.
local limits = {}
-- The decision that read a key's value last.
local reader = {}
-- The values that a decision leaves, one for each key, and for how long.
local keys, packed, lives_us = {}, {}, {}

local function numbers(l)
    local limit = program[l] == 1 and program[l + 1] < NAMES
    if limit then
        local most, d, count, code = program[l + 4], program[l + 6], program[l + 7], program[l + 9]
        local is_long = code == 0 or count >= (d == 1 and COUNTS or PART_COUNTS)
        local head = program[l + 1] * 4096
        if is_long then
            limit = { head + LONG * 256, program[l + 3], most, program[l + 5], d, count, 0, 26, LONG_COUNTS, program[l + 8] }
        else
            head = head + (d == 1 and 0 or PART) * 256 + code * 16
            limit = { head, program[l + 3], min(most, COUNTS - 1), program[l + 5], d, count, count * COUNTS, 12, COUNTS, false }
        end
    end
    limits[l] = limit
    return limit
end

-- Packs a level: the record, and the us until it is untouched.
local function record(limit, used, drained)
    local n, d = limit[4], limit[5]
    local whole = ceil(drained / d)
    local low, head = now_low - whole, limit[1] + now_high
    if low < 0 then
        low, head = low + 281474976710656, head - 1
    end
    if limit[10] then
        return pack_record('>I2I6I4I6I4I4', head, low, whole * d - drained, limit[10], limit[6], used),
            (used * n - drained) / d
    end
    if d == 1 then
        return pack_record('>I2I6I4', head, low, limit[7] + used), used * n - drained
    end
    return pack_record('>I2I6I1I1I2', head, low, whole * d - drained, limit[6], used), (used * n - drained) / d
end

-- A crowd whose first has room for all its tiers, from `first` to `last`, and is told of at out[i]: how many more
-- have; nothing where a record would not hold them.
local function others_granted(first, last, times, i)
    local more, place = times - 1, i
    for p = first, last, 4 do
        local most = floor((limits[program[p + 2]][2] - out[place + 1]) / program[p + 3])
        more, place = most < more and most or more, place + 4
    end
    local value, longest_us, count = false, 0, 0
    for p = first, last, 4 do
        local key, limit = program[p], limits[program[p + 2]]
        local used = out[i + 1] + more * program[p + 3]
        if used >= limit[9] then
            return
        end
        local text, until_us = record(limit, used, out[i + 2])
        value, longest_us = value and value .. text or text, max(longest_us, until_us)
        if program[p + 4] ~= key then
            count = count + 1
            packed[count], lives_us[count] = value, longest_us
            value, longest_us = false, 0
        end
        i = i + 4
    end
    return more
end

-- What each tier of a crowd tells those that came too late, behind what the first is told at out[i].
local function tell_late(first, last, more, i)
    local late = i + last - first + 4
    for p = first, last, 4 do
        local cost = program[p + 3]
        local used = out[i + 1] + more * cost
        out[late] = used + cost <= limits[program[p + 2]][2] and 1 or 0
        out[late + 1], out[late + 2], out[late + 3] = used, out[i + 2], -1
        i, late = i + 4, late + 4
    end
    return late
end

-- Whether the first and the second key of a decision, and any after them, are each met once.
local function is_met_once(key, before, at, count)
    if count == 2 then
        reader[before] = at
    end
    local is_met = reader[key] == at
    reader[key] = at
    return not is_met
end

-- The decision at program[at], or a crowd of them, if it is of this kind; where the next operation begins,
-- or nothing.
return function(at)
    local program, out, now_low, now_high = program, out, now_low, now_high
    local operation, times, i = program[at], 1, o
    if operation == 8 then
        at, times, i = at + 1, program[at + 1], i + 1
    elseif operation ~= 0 and operation ~= 2 then
        return
    end
    local first = at + 2
    local last = first + 4 * (program[at + 1] - 1)
    if last < first or program[last + 4] ~= 0 then
        return
    end
    local is_free = program[first + 3] == 0
    local charges = operation ~= 2 and not is_free
    local told, fits, held, count = i, true, 0, 0
    local value, length, from, bytes, text, longest_us
    for p = first, last, 4 do
        local key, l, cost = program[p], program[p + 2], program[p + 3]
        local limit = limits[l] or numbers(l)
        if not limit then
            return
        end
        if cost == 0 then
            if not is_free then
                return
            end
            cost = 1
        elseif is_free then
            return
        end
        if key == held then
            from = from + bytes
        else
            count = count + 1
            keys[count] = key
            if count > 1 then
                if from + bytes <= length or not is_met_once(key, held, at, count) then
                    return
                end
                packed[count - 1], lives_us[count - 1] = text, longest_us
            end
            held, value, from, text, longest_us = key, values[key], 1, nil, 0
            length = value and #value or 0
        end
        local n, d, long_us, below = limit[4], limit[5], limit[10], limit[9]
        local used, drained, head, low = 0, 0
        bytes = limit[8]
        if from <= length then
            if length < from + bytes - 1 then
                return
            end
            local part, count_then = 0, limit[6]
            if long_us then
                local period_us
                head, low, part, period_us, count_then, used = unpack_record('>I2I6I4I6I4I4', value, from)
                if period_us ~= long_us then
                    return
                end
            elseif d == 1 then
                head, low, used = unpack_record('>I2I6I4', value, from)
                used = used - limit[7]
            else
                head, low, part, count_then, used = unpack_record('>I2I6I1I1I2', value, from)
            end
            -- The limit's part of the head is taken off, as is its count: what is left of another's is out of bounds.
            head = head - limit[1]
            local elapsed = now_low - low
            if head ~= now_high then
                elapsed = elapsed + (now_high - head) * 281474976710656
                if head < 0 or head > 15 then
                    return
                end
            end
            if d > 1 or long_us then
                elapsed = elapsed * d - part
                if count_then ~= limit[6] or elapsed >= 9007199254740736 then
                    return
                end
            end
            if elapsed < 0 or used < 0 or used > limit[3] then
                return
            end
            drained = elapsed % n
            used = used - (elapsed - drained) / n
            if used <= 0 then
                used, drained = 0, 0
            end
        elseif lost_us > 0 and (long_us or (now - lost_us) * d < limit[2] * n) then
            return
        end
        local would = used + cost
        if would > limit[2] then
            if would >= below then
                return
            end
            out[i], fits = 0, false
        elseif would < below then
            out[i] = 1
        else
            return
        end
        if charges then
            used = would
            local now_packed, until_us
            if d == 1 and not long_us then
                low, head = now_low - drained, limit[1] + now_high
                if low < 0 then
                    low, head = low + 281474976710656, head - 1
                end
                now_packed = pack_record('>I2I6I4', head, low, limit[7] + used)
                until_us = used * n - drained
            else
                now_packed, until_us = record(limit, used, drained)
            end
            text = text and text .. now_packed or now_packed
            if until_us > longest_us then
                longest_us = until_us
            end
        end
        out[i + 1], out[i + 2], out[i + 3] = used, drained, -1
        i = i + 4
    end
    if from + bytes <= length then
        return
    end
    packed[count], lives_us[count] = text, longest_us
    if charges and not fits then
        for p = first, last, 4 do
            local place = told + p - first + 1
            out[place] = out[place] - program[p + 3]
        end
    end
    if operation == 8 then
        local more = 0
        if fits then
            more = others_granted(first, last, times, told)
        end
        if not more then
            return
        end
        out[told - 1] = fits and 1 + more or 0
        i = tell_late(first, last, more, told)
    end
    for key = 1, charges and fits and count or 0 do
        note_change(keys[key], packed[key], lives_us[key])
    end
    o = i
    return last + 5
end
