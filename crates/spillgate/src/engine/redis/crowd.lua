-- A crowd: decisions over the same tiers at the same costs, none between them that touches any of those.
-- They are charged at once, as often as there is room, and those in between are told by the caller, who
-- knows the first and the last: each charge lowers what is left by its cost, and changes nothing else that
-- is told. Joined to check.lua, and run when a call first asks for one.
--
-- The state is left as one after the other would leave it, for all of them come at one instant.

-- How many of `most` decisions a tier has room for, one after the other.
local function room_for(cell, limit, cost, most)
    local has_room = limit.module.has_room
    if cost == 0 then
        return has_room(cell, limit, 1) and most or 0
    end
    local granted = 0
    while granted < most do
        local half = ceil((granted + most) / 2)
        if has_room(cell, limit, half * cost) then
            granted = half
        else
            most = half - 1
        end
    end
    return granted
end

-- Charges each tier of a group for so many decisions.
local function charge_all(first, last, times)
    for p = first, last, 4 do
        local key, l, cost = program[p], program[p + 2], program[p + 3]
        local cell, limit = cells[key * MANY + l], limits[l]
        if times > 0 and cost > 0 then
            limit.module.charge(cell, limit, times * cost)
            cell.changed, dirty[key] = true, true
        end
    end
end

-- What each tier of a group answers; all have room where somebody was let in just now.
local function tell_all(first, last, lets_in)
    for p = first, last, 4 do
        local l, cost = program[p + 2], program[p + 3]
        local cell, limit = cells[program[p] * MANY + l], limits[l]
        cost = cost > 0 and cost or 1
        answer(cell, limit, cost, lets_in or cell and limit.module.has_room(cell, limit, cost))
    end
end

-- One group of tiers of a crowd: as many of `most` as have room for all of it are charged. How many were.
local function crowd_step(first, count, most)
    local last = first + 4 * count - 1
    local granted, whole = most, true
    for p = first, last, 4 do
        local l = program[p + 2]
        local cell = cell_of(program[p], program[p + 1], l)
        whole = whole and cell
        granted = cell and room_for(cell, limits[l], program[p + 3], granted) or 0
    end
    for p = first, last, 4 do
        local key = program[p]
        local cell = cells[key * MANY + program[p + 2]]
        if whole and granted == 0 and most > 0 and program[p + 3] > 0 and cell.rebased then
            cell.changed, dirty[key] = true, true
        end
    end
    out[o] = granted
    o = o + 1
    charge_all(first, last, granted > 0 and 1 or 0)
    tell_all(first, last, granted > 0)
    charge_all(first, last, granted - 1)
    tell_all(first, last, false)
    return granted
end

-- The crowd whose decisions are counted at program[p]; where the next operation begins.
local function crowd(p)
    local count = program[p + 1]
    local granted = crowd_step(p + 2, count, program[p])
    p = p + 2 + 4 * count
    local shadows = program[p]
    p = p + 1
    for _ = 1, shadows do
        count = program[p]
        crowd_step(p + 1, count, granted)
        p = p + 1 + 4 * count
    end
    return p
end

return crowd
