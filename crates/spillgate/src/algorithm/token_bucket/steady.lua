-- Decisions over token buckets in their steady state, without a cell for each tier: no record yet, or
-- a short one that was written under the very numbers that are asked for; no receipt, no shadow rule,
-- no clock behind. Most are of this kind, and get the same answers as from token_bucket.lua.
--
-- They are taken in order, up to the first that is not of this kind. What they leave in `values` is
-- what the others load.

-- A short record with its head, and the bounds of what it holds: of a count that leaves no parts of a
-- us, and of one that does.
local RECORD, NAMES, COUNTS, PART_COUNTS = 12, 15, 65536, 256
local PART = 7

-- What the tiers of one decision hold, one after the other: used, drained.
local levels = {}
-- The decision that read a key's value last.
local reader = {}

-- Whether the record at `from` of a value is steady, and its level then, from levels[i] on. Its limit
-- begins at program[l].
local function level(value, from, l, i)
    local n, d, count, code = program[l + 5], program[l + 6], program[l + 7], program[l + 9]
    if program[l] ~= 1 or code == 0 or count >= (d == 1 and COUNTS or PART_COUNTS)
        or program[l + 1] >= NAMES then
        return false
    end
    if not value then
        if lost_us > 0 and (now - lost_us) * d < program[l + 3] * n then
            return false
        end
        levels[i], levels[i + 1] = 0, 0
        return true
    end
    if #value < from + RECORD - 1 then
        return false
    end
    local head, high, low, part, count_then, used
    if d == 1 then
        head, high, low, count_then, used = struct.unpack('>I1I1I6I2I2', value, from)
        part = 0
    else
        head, high, low, part, count_then, used = struct.unpack('>I1I1I6I1I1I2', value, from)
        head = head - PART
    end
    local boundary_high = high % 16
    local elapsed = (now - boundary_high * 281474976710656 - low) * d - part
    if head ~= program[l + 1] * 16 or high - boundary_high ~= code * 16 or count_then ~= count
        or elapsed < 0 or elapsed >= 9007199254740992 - PART_COUNTS or used > program[l + 4] then
        return false
    end
    local rest = elapsed % n
    local left = used - (elapsed - rest) / n
    if left > 0 then
        levels[i], levels[i + 1] = left, rest
    else
        levels[i], levels[i + 1] = 0, 0
    end
    return true
end

-- Whether all tiers are steady, and whether all have room. A free decision is one of cost 0.
local function judge(first, last, free)
    local fits, from, i = true, 1, 1
    for p = first, last, 4 do
        local key, l, cost = program[p], program[p + 2], program[p + 3]
        local value = values[key]
        if key == program[p - 4] and p > first then
            from = from + RECORD
        elseif reader[key] == first then
            return false
        else
            reader[key], from = first, 1
        end
        local ends = key ~= program[p + 4] or p == last
        if (cost == 0) ~= free or not level(value, from, l, i)
            or ends and value and #value >= from + RECORD then
            return false
        end
        local would = levels[i] + (free and 1 or cost)
        fits = fits and would <= program[l + 3]
        if would >= COUNTS then
            return false
        end
        i = i + 2
    end
    return true, fits
end

-- The record of a charged tier, and the us until it is untouched.
local function record(l, used, drained)
    local d, whole = program[l + 6], drained
    if d > 1 then
        whole = ceil(drained / d)
    end
    local low = (now - whole) % 281474976710656
    local high = program[l + 9] * 16 + (now - whole - low) / 281474976710656
    local until_us = (used * program[l + 5] - drained) / d
    if d == 1 then
        return struct.pack('>I1I1I6I2I2', program[l + 1] * 16, high, low, program[l + 7], used), until_us
    end
    return struct.pack('>I1I1I6I1I1I2', program[l + 1] * 16 + PART, high, low, whole * d - drained,
        program[l + 7], used), until_us
end

-- How many of a crowd have room one after the other; nothing where a short record would not hold them.
local function grants(first, last, times)
    local granted, i = times, 1
    for p = first, last, 4 do
        local most = floor((program[program[p + 2] + 3] - levels[i]) / program[p + 3])
        granted, i = most < granted and most or granted, i + 2
    end
    i = 1
    for p = first, last, 4 do
        if levels[i] + granted * program[p + 3] >= COUNTS then
            return
        end
        i = i + 2
    end
    return granted
end

-- What each tier answers with `times` charges behind it, those of a decision or one that was let in.
local function tell(first, last, times, free, lets_in)
    local i = 1
    for p = first, last, 4 do
        local cost = program[p + 3]
        local used = levels[i] + times * cost
        out[o] = (lets_in or used + (free and 1 or cost) <= program[program[p + 2] + 3]) and 1 or 0
        out[o + 1], out[o + 2], out[o + 3] = used, levels[i + 1], -1
        o, i = o + 4, i + 2
    end
end

-- The decision at program[d], or a crowd of them, if it is of this kind; where the next operation begins,
-- or nothing.
local function steady(d)
    local operation, times = program[d], 1
    if operation == 8 then
        d, times = d + 1, program[d + 1]
    elseif operation ~= 0 and operation ~= 2 then
        return
    end
    local first = d + 2
    local last = first + 4 * (program[d + 1] - 1)
    if program[last + 4] ~= 0 then
        return
    end
    local free = program[first + 3] == 0
    local whole, fits = judge(first, last, free)
    if not whole then
        return
    end
    local granted = 0
    if fits and not free and operation ~= 2 then
        granted = times == 1 and 1 or grants(first, last, times)
        if not granted then
            return
        end
    end
    local value, longest_us, i = false, 0, 1
    if granted > 0 then
        for p = first, last, 4 do
            local key = program[p]
            local packed, until_us = record(program[p + 2], levels[i] + granted * program[p + 3], levels[i + 1])
            value = value and value .. packed or packed
            longest_us = until_us > longest_us and until_us or longest_us
            if p == last or key ~= program[p + 4] then
                values[key], fresh[key] = value, longest_us
                value, longest_us = false, 0
            end
            i = i + 2
        end
    end
    if operation == 8 then
        out[o] = granted
        o = o + 1
        tell(first, last, granted > 0 and 1 or 0, free, granted > 0)
        tell(first, last, granted, free, false)
    else
        tell(first, last, granted, free, granted > 0)
    end
    return last + 5
end
