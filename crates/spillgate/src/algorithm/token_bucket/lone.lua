-- Decisions over one token bucket each in its steady state: no record yet, or a short one that was
-- written under the very numbers that are asked for. Hot calls hold nothing else, so this is written
-- out, without a function or a table for each, and gives the same answers as steady.lua.
--
-- They are taken in order, up to the first that is not of this kind, at `at`.

local at, size = program[3], #program
-- The limit that was read last, and its numbers.
local known, burst, forced_max, n, count, head, high_code
local unpack_record, pack_record = struct.unpack, struct.pack
-- The instant's 48 low bits, and what is above them.
local now_low = now % 281474976710656
local now_high = (now - now_low) / 281474976710656

while at < size and program[at] == 0 and program[at + 1] == 1 and program[at + 6] == 0 do
    local key, l, cost = program[at + 2], program[at + 4], program[at + 5]
    if l ~= known then
        if program[l] ~= 1 or program[l + 6] ~= 1 or program[l + 9] == 0 or program[l + 7] >= 65536
            or program[l + 1] >= 15 then
            break
        end
        known, burst, forced_max, n, count = l, program[l + 3], program[l + 4], program[l + 5], program[l + 7]
        head, high_code = program[l + 1] * 16, program[l + 9] * 16
    end
    local used, drained = 0, 0
    local value = values[key]
    if not value then
        if lost_us > 0 and now - lost_us < burst * n then
            break
        end
    else
        if #value ~= 12 then
            break
        end
        local head_then, high, low, count_then, used_then = unpack_record('>I1I1I6I2I2', value)
        local boundary_high = high % 16
        local elapsed = (now_high - boundary_high) * 281474976710656 + now_low - low
        if head_then ~= head or high - boundary_high ~= high_code or count_then ~= count or elapsed < 0
            or used_then > forced_max then
            break
        end
        local rest = elapsed % n
        local left = used_then - (elapsed - rest) / n
        if left > 0 then
            used, drained = left, rest
        end
    end
    local would = used + cost
    if cost == 0 or would >= 65536 then
        break
    end
    out[o] = 0
    if would <= burst then
        local low, high = now_low - drained, high_code + now_high
        if low < 0 then
            low, high = low + 281474976710656, high - 1
        end
        used, out[o] = would, 1
        values[key] = pack_record('>I1I1I6I2I2', head, high, low, count, used)
        if not fresh[key] then
            changed = changed + 1
            changes[changed] = key
        end
        fresh[key] = used * n - drained
    end
    out[o + 1], out[o + 2], out[o + 3] = used, drained, -1
    o, at = o + 4, at + 7
end
