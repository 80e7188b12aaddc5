"""The paper's photovoltaic data sets: the output of the houses of one city, one hour ahead.

Appendix "PV dataset" of the paper; what it leaves open is settled here. All houses know the same
weather station; each has its own panels, neighbours and instruments (`House`). Its output comes from
pvlib: irradiance on the panels after Hay and Davies, Sandia's models of cell temperature, modules and
inverter.

A sample is one hour. Hours 8 to 17 (`Weather.local`: the clock that follows the sun, which is UTC in
Switzerland, so that the window lies in daylight all summer) of the 61 days of June and July make 610
of them. The target is the house's output in kW; the 15 features are the sun's height, the house's own
air temperature and wind speed, the weather station's direct irradiance one hour before on a plane that
is tilted at the latitude and faces the equator, and the house's own output 1, 2, ..., 145 hours before
(`PAPER_LAGS`; `select_lags` chooses others).
The past is that of the whole record, so it reaches into nights and into May. One year is for training,
the next for testing. Everything is in its own units: `data.standardize` scales it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import linalg, signal

from pacpfl.data.settings import PVSettings
from pacpfl.data.weather import Sky, Weather, airmass, hour_of_day, require_pvlib, sky
from pacpfl.errors import InputError
from pacpfl.types import Client, Federation, Samples

Panels = Literal["EW", "S"]
KINDS = {"EW": ("east", "west"), "S": ("south",)}

MONTHS = (6, 7)
FIRST_HOUR, LAST_HOUR = 8, 17
SAMPLES = 610  # in the two months of one year
PAPER_LAGS = (1, 2, 4, 18, 20, 22, 43, 70, 74, 121, 145)
TWO_WEEKS = 14 * 24  # hours

INSTRUMENT_NOISE = 0.1  # std of a house's temperature and wind, as a share of the record's range
COLDEST_CELL, HOTTEST_CELL = -10.0, 70.0  # degrees Celsius between which a string must work

# So many modules and inverters that, taken in turn by houses that face east and west in turn, every
# combination comes up: 2, 5 and 7 have no common divisor.
MODULES = (
    "Canadian_Solar_CS6X_300M__2013_",
    "LG_LG290N1C_G3__2013_",
    "Trina_TSM_240PA05__2013_",
    "Hanwha_HSL60P6_PA_4_250T__2013_",
    "Panasonic_VBHN235SA06B__2013_",
)
INVERTERS = (
    "ABB__UNO_DM_5_0_TL_PLUS_US_SB_RA__240V_",
    "Fronius_USA__IG_Plus_V_3_8__240V_",
    "SMA_America__SB5_0_1SP_US_40__240V_",
    "Delta_Electronics__SOLIVIA_6_6_NA_G4_TL__240V_",
    "SMA_America__SB4000TL_US_22__240V_",
    "KACO__blueplanet_6400x__240V_",
    "Fronius_USA__IG_Plus_V_7_5__240V_",
)


@dataclass(frozen=True)
class House:
    """What makes a house differ from its neighbours."""

    tilt: float  # of the panels, degrees from the horizontal
    azimuth: float  # where they face, degrees clockwise from north
    altitude: float  # metres
    irradiance_scale: float  # light at the house for each unit of it at the weather station
    shadow_start: float  # hour of the day from which a tree or building shades it, every day
    shadow_hours: float
    shadow_depth: float  # share of the light that the shadow takes
    module: str
    inverter: str


@dataclass(frozen=True)
class HouseRecord:
    """What one house measures, one value for each hour of the weather."""

    house: House
    kind: int  # index into KINDS[panels]
    temperature: np.ndarray  # [hours], degrees Celsius
    wind: np.ndarray  # [hours], m/s
    output: np.ndarray  # [hours], kW


def pv(
    panels: Panels,
    clients: int,
    new_clients: int,
    samples: int,
    window: Literal["first", "random"],
    weather: Weather,
    seed: int = 0,
    *,
    skip: int = 0,
    years: tuple[int, int] | None = None,
    lags: Sequence[int] = PAPER_LAGS,
) -> Federation:
    """Make PV-EW or PV-S: half of the houses face east and half west (in turn), or all face the equator.

    A house trains on the `first` samples of its first year or on a `random` choice of them (its own,
    kept in order of time), in either case without the `skip` hours that come before all others, and
    is tested on all 610 of the second. `years` defaults to the first two that the weather holds. House
    i is the same however many houses there are.
    """
    PVSettings(panels=panels, window=window)  # raises where they are not known
    _check_choices(min(clients, new_clients), samples, skip, lags)
    light = sky(weather)
    train_hours, test_hours = _chosen_hours(weather, years, max(lags))
    train_hours = train_hours[skip:]
    station = direct_irradiance(light, abs(weather.latitude), _towards_equator(weather))

    def client(name: str, number: int, seeds: np.random.SeedSequence) -> Client:
        house_seed, choice_seed = seeds.spawn(2)
        record = _record(panels, number, weather, light, house_seed)
        order = train_hours
        if window == "random":
            order = np.random.default_rng(choice_seed).permutation(train_hours)
        hours = np.sort(order[:samples])

        def samples_at(hours: np.ndarray) -> Samples:
            columns = [light.height[hours], record.temperature[hours], record.wind[hours]]
            columns += [station[hours - 1], *(record.output[hours - lag] for lag in lags)]
            return Samples(np.column_stack(columns), record.output[hours])

        kind = record.kind if panels == "EW" else None
        return Client(name, samples_at(hours), None, samples_at(test_hours), kind, hours)

    def group(prefix: str, seeds: list[np.random.SeedSequence]) -> tuple[Client, ...]:
        return tuple(client(f"{prefix}-{i + 1:02d}", i, each) for i, each in enumerate(seeds))

    existing, new = _seeds(seed, clients, new_clients)
    weather_features = ("sun height", "air temperature", "wind speed", "irradiance 1 h before")
    features = (*weather_features, *(f"output {lag} h before" for lag in lags))
    name = f"pv-{panels.lower()}"
    return Federation(name, group("house", existing), group("new-house", new), features, "output")


def house_records(
    panels: Panels, clients: int, weather: Weather, seed: int = 0
) -> tuple[HouseRecord, ...]:
    """Return all hours of the existing houses that `pv` makes its samples from."""
    light, (seeds, _) = sky(weather), _seeds(seed, clients, 0)
    return tuple(
        _record(panels, i, weather, light, each.spawn(2)[0]) for i, each in enumerate(seeds)
    )


def _seeds(seed: int, *counts: int) -> list[list[np.random.SeedSequence]]:
    """Return one for each existing and each new house; those of a house do not depend on the counts."""
    groups = np.random.SeedSequence([20180601, seed]).spawn(2)
    return [group.spawn(count) for group, count in zip(groups, counts, strict=True)]


def _record(
    panels: Panels, number: int, weather: Weather, light: Sky, seeds: np.random.SeedSequence
) -> HouseRecord:
    rng = np.random.default_rng(seeds)
    house = draw_house(rng, panels, number, weather)
    # The air at the house is what its instruments say: it cools the panels and is the feature.
    temperature, wind = (
        values + INSTRUMENT_NOISE * np.ptp(values) * rng.normal(size=len(values))
        for values in (weather.temperature, weather.wind)
    )
    wind = np.maximum(wind, 0.0)
    output = output_of(house, light, hour_of_day(weather.local), temperature, wind)
    return HouseRecord(house, number % len(KINDS[panels]), temperature, wind, output)


def draw_house(rng: np.random.Generator, panels: Panels, number: int, weather: Weather) -> House:
    """Draw tilt ~ N(latitude, 5), azimuth ~ N(90, 15) and N(270, 15) in turn or N(180, 15), altitude
    +-10%, irradiance scale ~ N(1, 0.2), and a shadow of 1 to 3 hours that takes up to 20%."""
    facing = (90.0, 270.0)[number % 2] if panels == "EW" else _towards_equator(weather)
    return House(
        tilt=float(np.clip(rng.normal(abs(weather.latitude), 5.0), 0.0, 90.0)),
        azimuth=rng.normal(facing, 15.0) % 360.0,
        altitude=weather.altitude * rng.uniform(0.9, 1.1),
        irradiance_scale=max(rng.normal(1.0, 0.2), 0.1),  # a house without light is no house
        shadow_start=rng.uniform(7.0, 16.0),
        shadow_hours=rng.uniform(1.0, 3.0),
        shadow_depth=rng.uniform(0.0, 0.2),
        module=MODULES[number % len(MODULES)],
        inverter=INVERTERS[number % len(INVERTERS)],
    )


def _towards_equator(weather: Weather) -> float:
    return 180.0 if weather.latitude >= 0 else 0.0


def direct_irradiance(light: Sky, tilt: float, azimuth: float) -> np.ndarray:
    """Return the beam on a tilted plane, W/m2 for every hour: beam x max(cos(angle of incidence), 0)."""
    pvlib = require_pvlib()
    cosine = pvlib.irradiance.aoi_projection(tilt, azimuth, 90.0 - light.height, light.azimuth)
    return light.beam * np.maximum(cosine, 0.0)


def output_of(
    house: House, light: Sky, hour: np.ndarray, temperature: np.ndarray, wind: np.ndarray
) -> np.ndarray:
    """Compute the alternating-current power of the house in kW for every hour, never negative.

    `hour` is that of the day. The models see daylight only: at night there is nothing to compute.
    """
    pvlib = require_pvlib()
    modules, inverters = _databases()
    module, inverter = modules[house.module], inverters[house.inverter]
    result = np.zeros(len(light.height))
    day = np.flatnonzero((light.height > 0) & (light.horizontal > 0))
    if not len(day):
        return result
    geometry = (house.tilt, house.azimuth, 90.0 - light.height[day], light.azimuth[day])
    lights = (light.beam[day], light.horizontal[day], light.diffuse[day], light.beyond[day])
    plane = pvlib.irradiance.get_total_irradiance(*geometry, *lights, model="haydavies")
    in_shadow = (hour[day] - house.shadow_start) % 24 < house.shadow_hours
    light_share = house.irradiance_scale * np.where(in_shadow, 1.0 - house.shadow_depth, 1.0)
    direct, diffuse, whole = (
        light_share * plane[f"poa_{part}"] for part in ("direct", "diffuse", "global")
    )
    air, angle = airmass(geometry[2], house.altitude), pvlib.irradiance.aoi(*geometry)
    effective = pvlib.pvsystem.sapm_effective_irradiance(direct, diffuse, air, angle, module)
    mounted = pvlib.temperature.TEMPERATURE_MODEL_PARAMETERS["sapm"]["close_mount_glass_glass"]
    cell_temperature = pvlib.temperature.sapm_cell(whole, temperature[day], wind[day], **mounted)
    lit = effective > 0  # the model takes its logarithm
    panel = pvlib.pvsystem.sapm(effective[lit], cell_temperature[lit], module)
    series, strings = array_size(module, inverter)
    modules_power = series * strings * panel["p_mp"]
    power = pvlib.inverter.sandia(series * panel["v_mp"], modules_power, inverter)
    result[day[lit]] = np.maximum(power, 0.0) / 1000.0  # an idle inverter draws a few watts
    return result


@cache
def _databases() -> tuple[Any, Any]:
    """Read Sandia's modules and the CEC's inverters, which pvlib brings."""
    retrieve = require_pvlib().pvsystem.retrieve_sam
    return retrieve("SandiaMod"), retrieve("CECInverter")


def array_size(module: Mapping[str, float], inverter: Mapping[str, float]) -> tuple[int, int]:
    """Choose so many modules in series and strings of them that they come nearest to the inverter's power.

    A string may not exceed the inverter's voltage with cold cells, nor fall below the range it works
    in with hot ones; nor below 55% of the voltage the inverter is made for.
    """
    cold_voltage = module["Voco"] + module["Bvoco"] * (COLDEST_CELL - 25.0)
    hot_voltage = module["Vmpo"] + module["Bvmpo"] * (HOTTEST_CELL - 25.0)
    longest = int(inverter["Vdcmax"] / cold_voltage)
    lowest = max(inverter["Mppt_low"] / hot_voltage, 0.55 * inverter["Vdco"] / module["Vmpo"])
    shortest = int(np.ceil(lowest))
    rated = module["Vmpo"] * module["Impo"]
    sizes = [(n, strings) for n in range(shortest, longest + 1) for strings in range(1, 9)]
    return min(sizes, key=lambda size: abs(size[0] * size[1] * rated - inverter["Pdco"]))


def sample_hours(local: pd.DatetimeIndex, year: int) -> np.ndarray:
    """Return where the hours 8 to 17 of June and July of a year stand."""
    inside = (local.year == year) & np.isin(local.month, MONTHS)
    return np.flatnonzero(inside & (local.hour >= FIRST_HOUR) & (local.hour <= LAST_HOUR))


def _chosen_hours(
    weather: Weather, years: tuple[int, int] | None, reach: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the hours for training and for testing, all of them with `reach` hours of past."""
    hours = {year: sample_hours(weather.local, year) for year in weather.local.year.unique()}
    complete = [y for y, found in hours.items() if len(found) == SAMPLES and found[0] >= reach]
    train, test = years or (*complete[:2], None, None)[:2]
    if train == test or not {train, test} <= set(complete):
        wanted = "two years" if years is None else f"the years {train} and {test}, each its own,"
        raise InputError(
            f"{weather.source} goes from {weather.times[0]:%Y-%m-%d} to {weather.times[-1]:%Y-%m-%d}, "
            f"but {wanted} are needed with June, July and the {reach} hours before; take whole years."
        )
    return hours[train], hours[test]


def _check_choices(houses: int, samples: int, skip: int, lags: Sequence[int]) -> None:
    if not 1 <= samples <= SAMPLES:
        raise InputError(
            f"samples = {samples} is not possible; take 1 to {SAMPLES} for each house."
        )
    if not 0 <= skip <= SAMPLES - samples:
        raise InputError(
            f"skip = {skip} is not possible with samples = {samples} of {SAMPLES} hours; take 0 to "
            f"{SAMPLES - samples}."
        )
    if houses < 0:
        raise InputError(f"There cannot be {houses} houses; take 0 or more.")
    if not lags or min(lags) < 1 or len(set(lags)) < len(lags):
        raise InputError(f"lags = {list(lags)} is not possible; take different hours from 1 on.")


def select_lags(
    series: Sequence[np.ndarray], count: int = len(PAPER_LAGS), longest: int = TWO_WEEKS
) -> tuple[int, ...]:
    """Choose the `count` lags with the largest |PACF| on average over the series, in increasing order.

    It says which hours of its own past a house looks at (paper, appendix "PV dataset", features). Give
    TRAINING series only: what is chosen by looking at test data is no test.
    """
    if not series or not 1 <= count <= longest:
        raise InputError(
            f"{count} lags up to {longest} cannot be chosen from {len(series)} series; give at least "
            "one series and ask for 1 lag up to as many as there are."
        )
    size = np.mean([np.abs(partial_autocorrelation(each, longest)) for each in series], axis=0)
    largest = np.argsort(-size, kind="stable")[:count]
    return tuple(int(lag) for lag in np.sort(largest) + 1)


def partial_autocorrelation(series: np.ndarray, longest: int) -> np.ndarray:
    """Compute phi_11, phi_22, ... up to the longest lag.

    The one at lag h is the correlation of x_t and x_{t-h} that the hours between them do not explain: the
    last coefficient of the best linear prediction of x_t from x_{t-1}, ..., x_{t-h}, which solves the
    Toeplitz system R phi = r of the autocorrelations (sums over all pairs divided by the whole length,
    which keeps every |phi_hh| <= 1).
    """
    series = np.asarray(series, float)
    if series.ndim != 1 or len(series) <= longest or not np.isfinite(series).all():
        raise InputError(
            f"A series of shape {series.shape} has no partial autocorrelation up to lag {longest}; give "
            "one column of finite numbers that is longer than that."
        )
    if not np.ptp(series) > 0:
        raise InputError("A series that never changes has no autocorrelation; leave it out.")
    centred = series - series.mean()
    covariance = signal.correlate(centred, centred, method="fft")[len(series) - 1 :]
    r = covariance / covariance[0]
    lags = range(1, longest + 1)
    return np.array([linalg.solve_toeplitz(r[:lag], r[1 : lag + 1])[-1] for lag in lags])
