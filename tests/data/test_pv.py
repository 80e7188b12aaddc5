"""The photovoltaic federation: which hours, features and houses, and what a house puts out."""

from __future__ import annotations

import itertools
import re
import runpy
import sys
import warnings
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import refused
from scipy import signal, stats

from pacpfl.data import pv as pv_module
from pacpfl.data import pvgis
from pacpfl.data import weather as weather_module
from pacpfl.data.prepare import check_federation
from pacpfl.data.pv import (
    INVERTERS,
    MODULES,
    PAPER_LAGS,
    House,
    HouseRecord,
    array_size,
    direct_irradiance,
    draw_house,
    house_records,
    output_of,
    partial_autocorrelation,
    pv,
    sample_hours,
    select_lags,
)
from pacpfl.data.weather import Sky, Weather, hour_of_day, sky, synthetic_weather
from pacpfl.types import Client, Federation

pvlib = pytest.importorskip("pvlib")


@pytest.fixture(scope="module")
def weather() -> Weather:
    return synthetic_weather(seed=3)


@pytest.fixture(scope="module")
def federation(weather: Weather) -> Federation:
    return pv("EW", 4, 3, 610, "first", weather, seed=5)


@pytest.fixture(scope="module")
def records(weather: Weather) -> tuple[HouseRecord, ...]:
    return house_records("EW", 4, weather, seed=5)


def hours_by_hand(year: int) -> list[pd.Timestamp]:
    days = [pd.Timestamp(year, 6, day) for day in range(1, 31)]
    days += [pd.Timestamp(year, 7, day) for day in range(1, 32)]
    return [day + pd.Timedelta(hours=hour) for day in days for hour in range(8, 18)]


def same(one: Client, other: Client) -> bool:
    parts = ((one.train, other.train), (one.test, other.test))
    return all(np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y) for a, b in parts)


def test_a_federation_is_what_the_paper_describes(weather: Weather, federation: Federation) -> None:
    check_federation(federation)
    assert federation.name == "pv-ew"
    kinds = {client.name: client.kind for client in (*federation.existing, *federation.new)}
    assert kinds == {
        "house-01": 0, "house-02": 1, "house-03": 0, "house-04": 1,
        "new-house-01": 0, "new-house-02": 1, "new-house-03": 0,
    }  # fmt: skip
    assert federation.features == (
        "sun height", "air temperature", "wind speed", "irradiance 1 h before",
        *(f"output {lag} h before" for lag in (1, 2, 4, 18, 20, 22, 43, 70, 74, 121, 145)),
    )  # fmt: skip
    for client in (*federation.existing, *federation.new):
        assert client.later is None
        assert client.train.x.shape == client.test.x.shape == (610, 15)
        assert min(client.train.y.min(), client.test.y.min()) >= 0
        assert client.train.x[:, 0].min() > 14  # degrees of sun height: daylight
    south = pv("S", 2, 0, 150, "first", weather)  # all of one kind
    assert (south.name, [client.kind for client in south.existing]) == ("pv-s", [None, None])


@pytest.mark.parametrize("which", [0, 1, 3])
def test_features_are_the_series_looked_up_by_the_clock(
    which: int, weather: Weather, federation: Federation, records: tuple[HouseRecord, ...]
) -> None:
    """Every number of the table is looked up by its own time of day, not by counting rows."""
    record, client = records[which], federation.existing[which]
    light = sky(weather)
    station = direct_irradiance(light, weather.latitude, 180.0)
    clock = {time.floor("h"): i for i, time in enumerate(weather.local)}
    for year, samples in ((2018, client.train), (2019, client.test)):
        for row, time in enumerate(hours_by_hand(year)):
            now = clock[time]
            assert samples.y[row] == record.output[now]
            seen = [light.height[now], record.temperature[now], record.wind[now]]
            assert samples.x[row, :4].tolist() == [*seen, station[now - 1]]
            past = [record.output[clock[time - pd.Timedelta(hours=lag)]] for lag in PAPER_LAGS]
            assert samples.x[row, 4:].tolist() == past


def test_first_and_random_windows(weather: Weather, federation: Federation) -> None:
    first = pv("EW", 3, 1, 150, "first", weather, seed=5)
    for short, whole in zip(first.existing, federation.existing, strict=False):
        np.testing.assert_array_equal(short.train.x, whole.train.x[:150])
        np.testing.assert_array_equal(short.train.y, whole.train.y[:150])
        assert len(short.test) == 610

    drawn = pv("EW", 3, 1, 150, "random", weather, seed=5)
    few = pv("EW", 3, 1, 40, "random", weather, seed=5)
    places = []
    for one, fewer, whole in zip(drawn.existing, few.existing, federation.existing, strict=False):
        rows = {tuple(row): i for i, row in enumerate(whole.train.x)}
        place = [rows[tuple(row)] for row in one.train.x]
        assert len(set(place)) == 150 and place == sorted(place)
        np.testing.assert_array_equal(one.train.y, whole.train.y[place])
        assert place[-1] > 500 and place[0] < 100  # from all over the two months
        assert {rows[tuple(row)] for row in fewer.train.x} <= set(place)
        places.append(place)
    assert places[0] != places[1]


def test_hours_that_are_skipped_are_in_no_window_and_leave_the_test_alone(
    weather: Weather, federation: Federation
) -> None:
    later = pv("EW", 3, 1, 150, "first", weather, seed=5, skip=300)
    last = pv("EW", 3, 1, 150, "random", weather, seed=5, skip=460)
    for short, drawn, whole in zip(
        later.existing, last.existing, federation.existing, strict=False
    ):
        np.testing.assert_array_equal(short.train.x, whole.train.x[300:450])
        np.testing.assert_array_equal(short.train.y, whole.train.y[300:450])
        np.testing.assert_array_equal(drawn.train.x, whole.train.x[460:])  # all that are left
        for client in (short, drawn):
            np.testing.assert_array_equal(client.test.x, whole.test.x)
            np.testing.assert_array_equal(client.test.y, whole.test.y)


def test_the_same_seed_gives_the_same_houses_and_their_number_changes_none(
    weather: Weather, federation: Federation
) -> None:
    again = pv("EW", 2, 1, 610, "first", weather, seed=5)
    assert all(map(same, again.existing, federation.existing[:2]))
    assert same(again.new[0], federation.new[0])
    assert not same(federation.new[0], federation.existing[0])
    assert not same(federation.existing[0], federation.existing[2])


def test_the_year_for_training_does_not_know_the_year_for_testing(weather: Weather) -> None:
    """Another second year, with temperature and wind of the same range, changes no training row."""
    later = weather.times.year == 2019
    beam = np.where(later, 0.5 * weather.beam, weather.beam)
    one = pv("EW", 2, 0, 610, "first", weather).existing[1]
    other = pv("EW", 2, 0, 610, "first", replace(weather, beam=beam)).existing[1]
    np.testing.assert_array_equal(one.train.x, other.train.x)
    np.testing.assert_array_equal(one.train.y, other.train.y)
    assert other.test.y.mean() < 0.9 * one.test.y.mean()


def test_instruments_err_by_a_tenth_of_the_range(
    weather: Weather, records: tuple[HouseRecord, ...]
) -> None:
    error = np.stack([record.temperature - weather.temperature for record in records])
    assert error.std() == pytest.approx(0.1 * np.ptp(weather.temperature), rel=0.02)
    assert abs(np.corrcoef(error[0], error[1])[0, 1]) < 0.03
    gusty = weather.wind > np.quantile(weather.wind, 0.99)  # where nothing is cut off at zero
    for record in records:
        assert record.wind.min() >= 0
        wind_error = (record.wind - weather.wind)[gusty]
        assert wind_error.std() == pytest.approx(0.1 * np.ptp(weather.wind), rel=0.25)


def test_houses_are_drawn_from_the_stated_distributions(weather: Weather) -> None:
    houses = [draw_house(np.random.default_rng(i), "EW", i, weather) for i in range(1400)]

    def column(name: str, of: list[Any] = houses) -> np.ndarray:
        return np.array([getattr(house, name) for house in of])

    for values, law in (
        (column("tilt"), stats.norm(weather.latitude, 5)),
        (column("azimuth", houses[0::2]), stats.norm(90, 15)),
        (column("azimuth", houses[1::2]), stats.norm(270, 15)),
        (column("irradiance_scale"), stats.norm(1, 0.2)),
        (column("altitude") / weather.altitude, stats.uniform(0.9, 0.2)),
        (column("shadow_depth"), stats.uniform(0, 0.2)),
        (column("shadow_hours"), stats.uniform(1, 2)),
        (column("shadow_start"), stats.uniform(7, 9)),
    ):
        assert stats.kstest(values, law.cdf).pvalue > 1e-3
    combinations = {(i % 2, house.module, house.inverter) for i, house in enumerate(houses)}
    assert len(combinations) == 2 * len(MODULES) * len(INVERTERS)
    south = [draw_house(np.random.default_rng(i), "S", i, weather) for i in range(500)]
    assert stats.kstest(column("azimuth", south), stats.norm(180, 15).cdf).pvalue > 1e-3


def test_south_of_the_equator_panels_face_north(weather: Weather) -> None:
    south = replace(weather, latitude=-33.9)
    houses = [draw_house(np.random.default_rng(i), "S", i, south) for i in range(50)]
    assert np.mean(np.cos(np.radians([house.azimuth for house in houses]))) > 0.9


def test_years_are_the_first_two_complete_ones_or_those_asked_for() -> None:
    """West of Greenwich the first hours belong to the last evening of the year before."""
    weather = synthetic_weather(40.0, -105.0, 1600.0, (2016, 2018))
    assert weather.local[0].year == 2015
    federation = pv("S", 1, 0, 610, "first", weather)
    explicit = pv("S", 1, 0, 610, "first", weather, years=(2016, 2017))
    swapped = pv("S", 1, 0, 610, "first", weather, years=(2018, 2016))
    assert same(federation.existing[0], explicit.existing[0])
    np.testing.assert_array_equal(swapped.existing[0].test.y, federation.existing[0].train.y)
    assert set(weather.local[sample_hours(weather.local, 2017)].hour) == set(range(8, 18))


def test_other_lags(weather: Weather, records: tuple[HouseRecord, ...]) -> None:
    client = pv("EW", 1, 0, 610, "first", weather, seed=5, lags=(3, 24)).existing[0]
    hours = sample_hours(weather.local, 2018)
    assert client.train.x.shape == (610, 6)
    np.testing.assert_array_equal(client.train.x[:, 4], records[0].output[hours - 3])
    np.testing.assert_array_equal(client.train.x[:, 5], records[0].output[hours - 24])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"panels": "N"}, "panels = 'N'"),
        ({"window": "last"}, "window = 'last'"),
        ({"samples": 611}, "samples = 611"),
        ({"samples": 0}, "samples = 0"),
        ({"skip": 461}, "samples = 150 of 610 hours; take 0 to 460"),
        ({"skip": -1}, "skip = -1"),
        ({"clients": -1}, "-1 houses"),
        ({"lags": ()}, "lags = []"),
        ({"lags": (1, 1)}, "lags = [1, 1]"),
        ({"lags": (0, 1)}, "lags = [0, 1]"),
        ({"years": (2018, 2020)}, "2018 and 2020"),
        ({"years": (2018, 2018)}, "2018 and 2018"),
        ({"lags": (4000,)}, "4000 hours before"),
    ],
)
def test_a_wrong_choice_is_named(weather: Weather, change: dict[str, Any], words: str) -> None:
    choice: dict[str, Any] = {
        "panels": "EW", "clients": 1, "new_clients": 0, "samples": 150, "window": "first",
        "weather": weather,
    }  # fmt: skip
    refused(lambda: pv(**(choice | change)), re.escape(words))


@pytest.mark.parametrize(
    ("first", "last"),
    [("2018", "2018"), ("2018", "2019-07-31 16:30"), ("2018-05-26 12:00", "2019")],
)
def test_weather_without_two_summers_is_named(weather: Weather, first: str, last: str) -> None:
    hours = weather.times.slice_indexer(first, last)
    columns = ("times", "beam", "diffuse", "temperature", "wind")
    short = replace(weather, **{name: getattr(weather, name)[hours] for name in columns})
    words = "^synthetic weather .* two years are needed .* 145 hours"
    refused(lambda: pv("EW", 1, 0, 150, "first", short), words)


def test_without_pvlib_the_extra_is_named(
    weather: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pvlib", None)
    refused(lambda: pv("EW", 1, 0, 150, "first", weather), r"pip install pacpfl\[pv\]")


@pytest.mark.parametrize("module", [pv_module, pvgis, weather_module])
def test_without_pvlib_the_modules_still_import(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their source is run afresh, beside the modules that are loaded already."""
    monkeypatch.setitem(sys.modules, "pvlib", None)
    runpy.run_path(module.__file__)


# ---- lags ----


def by_regression(series: np.ndarray, lag: int) -> float:
    """The last coefficient of the regression of x_t on x_{t-1}, ..., x_{t-lag}.

    The series is taken as zero (its mean) before its start and after its end, which is what dividing
    every sum of products by the whole length amounts to.
    """
    centred = np.concatenate([np.zeros(lag), series - series.mean(), np.zeros(lag)])
    rows = np.stack([centred[t - lag : t][::-1] for t in range(lag, len(centred))])
    coefficients, *_ = np.linalg.lstsq(rows, centred[lag:], rcond=None)
    return float(coefficients[-1])


def made(coefficients: dict[int, float], length: int, seed: int) -> np.ndarray:
    """x_t = sum of c x_{t-lag} + noise."""
    denominator = np.zeros(max(coefficients) + 1)
    denominator[0] = 1
    for lag, value in coefficients.items():
        denominator[lag] = -value
    noise = np.random.default_rng(seed).normal(size=length + 500)
    return np.asarray(signal.lfilter([1.0], denominator, noise))[500:]


def test_recursion_equals_regression() -> None:
    hours = np.arange(24 * 12)
    days = np.maximum(np.sin(2 * np.pi * hours / 24), 0)
    days *= np.random.default_rng(1).uniform(0.2, 1, len(hours))
    drawn = [made({1: 0.5, 3: -0.3}, 90, seed) + 7 for seed in (0, 1)]
    for series, longest, atol in ((drawn[0], 12, 0.0), (drawn[1], 12, 0.0), (days, 30, 1e-10)):
        expected = [by_regression(series, lag) for lag in range(1, longest + 1)]
        found = partial_autocorrelation(series, longest)
        np.testing.assert_allclose(found, expected, atol=atol)


def test_an_autoregressive_series_has_as_many_partial_autocorrelations_as_terms() -> None:
    """phi_22 of x_t = a x_{t-1} + b x_{t-2} + e is b, phi_11 is a / (1 - b), the others are 0."""
    found = partial_autocorrelation(made({1: 0.5, 2: 0.3}, 200_000, 3), 8)
    np.testing.assert_allclose(found, [0.5 / 0.7, 0.3, 0, 0, 0, 0, 0, 0], atol=0.01)
    assert np.abs(partial_autocorrelation(np.arange(50.0), 49)).max() <= 1  # and never more


def test_the_largest_on_average_are_selected() -> None:
    both = [made({2: 0.6}, 4000, 1), made({2: -0.6, 7: 0.3}, 4000, 2)]
    assert select_lags(both, 2, 20) == (2, 7)  # 2 has opposite signs in the two series
    assert select_lags(both[:1], 1, 20) == (2,)
    assert len(select_lags(both)) == len(PAPER_LAGS)
    assert list(select_lags(both)) == sorted(set(select_lags(both)))
    assert max(select_lags(both, 336, 336)) == 336  # two weeks of hours


@pytest.mark.parametrize(
    ("series", "longest", "words"),
    [
        (np.ones(50), 5, "never changes"),
        (np.arange(5.0), 5, r"shape \(5,\)"),
        (np.array([1.0, np.nan, 2.0]), 1, "finite"),
        (np.ones((4, 4)), 1, r"shape \(4, 4\)"),
    ],
)
def test_series_without_partial_autocorrelations(
    series: np.ndarray, longest: int, words: str
) -> None:
    refused(lambda: partial_autocorrelation(series, longest), words)


@pytest.mark.parametrize(("count", "series"), [(0, 1), (400, 1), (3, 0)])
def test_choices_that_cannot_be_made(count: int, series: int) -> None:
    several = [made({1: 0.5}, 500, 0)] * series
    refused(lambda: select_lags(several, count), f"^{count} lags up to 336 .* {series} series")


# ---- the output of a house, against pvlib's own chain of models and against common sense ----

PLAIN = House(
    tilt=40.0,
    azimuth=110.0,
    altitude=460.0,
    irradiance_scale=1.0,
    shadow_start=9.0,
    shadow_hours=2.0,
    shadow_depth=0.0,
    module=MODULES[0],
    inverter=INVERTERS[0],
)


@pytest.fixture(scope="module")
def year() -> Weather:
    return synthetic_weather(years=(2018, 2018), seed=1)


@pytest.fixture(scope="module")
def light(year: Weather) -> Sky:
    return sky(year)


def simulate(house: House, year: Weather, light: Sky) -> np.ndarray:
    return output_of(house, light, hour_of_day(year.local), year.temperature, year.wind)


@pytest.mark.parametrize("number", [0, 1, 4])
def test_output_equals_pvlibs_model_chain(number: int, year: Weather, light: Sky) -> None:
    """The same house built from pvlib's own objects: location, system and model chain."""
    house = replace(PLAIN, module=MODULES[number], inverter=INVERTERS[number])
    house = replace(house, azimuth=(110.0, 250.0, 175.0)[number % 3], tilt=35.0 + number)
    module = pvlib.pvsystem.retrieve_sam("SandiaMod")[house.module]
    inverter = pvlib.pvsystem.retrieve_sam("CECInverter")[house.inverter]
    series, strings = array_size(module, inverter)
    system = pvlib.pvsystem.PVSystem(
        surface_tilt=house.tilt,
        surface_azimuth=house.azimuth,
        module_parameters=module,
        inverter_parameters=inverter,
        temperature_model_parameters=pvlib.temperature.TEMPERATURE_MODEL_PARAMETERS["sapm"][
            "close_mount_glass_glass"
        ],
        modules_per_string=series,
        strings_per_inverter=strings,
    )
    place = pvlib.location.Location(year.latitude, year.longitude, "UTC", house.altitude)
    chain = pvlib.modelchain.ModelChain(
        system, place, dc_model="sapm", ac_model="sandia", aoi_model="sapm",
        spectral_model="sapm", temperature_model="sapm", transposition_model="haydavies",
    )  # fmt: skip
    lights = {"dni": light.beam, "dhi": year.diffuse, "ghi": year.beam + year.diffuse}
    air = {"temp_air": year.temperature, "wind_speed": year.wind}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pvlib, about pandas and about logarithms at night
        chain.run_model(pd.DataFrame(lights | air, index=year.times))
    expected = np.nan_to_num(chain.results.ac.to_numpy()).clip(0) / 1000
    ours = simulate(house, year, light)
    # Its sun is that of the house's altitude, ours that of the station's: a hair of refraction.
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-3)
    assert ours.max() > 0.6 * inverter["Paco"] / 1000
    assert (ours[light.height <= 0] == 0).all() and ours.min() == 0


def test_the_beam_on_a_plane_at_single_times(year: Weather, light: Sky) -> None:
    for time in ("2018-06-21 06:30", "2018-06-21 12:30", "2018-12-21 11:30", "2018-03-01 16:30"):
        i = year.times.get_loc(pd.Timestamp(time, tz="UTC"))
        sun_zenith, sun_azimuth = np.radians(90 - light.height[i]), np.radians(light.azimuth[i])
        for tilt, azimuth in ((0.0, 180.0), (46.0, 180.0), (30.0, 90.0), (30.0, 270.0)):
            slope, facing = np.radians(tilt), np.radians(azimuth)
            cosine = np.cos(sun_zenith) * np.cos(slope)
            cosine += np.sin(sun_zenith) * np.sin(slope) * np.cos(sun_azimuth - facing)
            expected = light.beam[i] * max(cosine, 0.0)
            assert direct_irradiance(light, tilt, azimuth)[i] == pytest.approx(expected)
    flat = direct_irradiance(light, 0.0, 180.0)
    steep = light.height > 5
    np.testing.assert_allclose(flat[steep], year.beam[steep], rtol=1e-9, atol=1e-9)


def test_the_shadow_takes_its_share_in_its_hours_only(year: Weather, light: Sky) -> None:
    hours = hour_of_day(year.local)
    plain = simulate(PLAIN, year, light)
    shaded = simulate(replace(PLAIN, shadow_depth=0.2), year, light)
    inside = (hours >= 9) & (hours < 11)
    np.testing.assert_array_equal(plain[~inside], shaded[~inside])
    bright = inside & (plain > 0.5) & (plain < 0.98 * plain.max())  # not cut by the inverter
    assert bright.sum() > 100
    ratio = shaded[bright] / plain[bright]
    assert ratio.min() > 0.76 and ratio.max() < 0.9  # cooler cells win back a little
    late = replace(PLAIN, shadow_start=23.0, shadow_hours=8.0, shadow_depth=0.2)
    changed = simulate(late, year, light) != plain
    assert changed.any() and hours[changed].max() < 7  # past midnight


def test_more_light_gives_more_until_the_inverter_limits_it(year: Weather, light: Sky) -> None:
    outputs = [
        simulate(replace(PLAIN, irradiance_scale=scale), year, light) for scale in (0.5, 1, 1.8)
    ]
    assert (np.diff(outputs, axis=0) >= 0).all()
    limit = pvlib.pvsystem.retrieve_sam("CECInverter")[PLAIN.inverter]["Paco"] / 1000
    assert outputs[2].max() == pytest.approx(limit)
    assert (outputs[2] == outputs[2].max()).sum() > 50


def test_a_polar_night_produces_nothing() -> None:
    weather = synthetic_weather(89.0, 0.0, 0.0, (2018, 2018))
    light = sky(weather)
    winter = light.height < 0
    dark = Sky(*(getattr(light, name)[winter] for name in Sky.__dataclass_fields__))
    zeros = np.zeros(winter.sum())
    assert (output_of(PLAIN, dark, zeros, zeros, zeros) == 0).all()


def test_every_array_fits_its_inverter() -> None:
    modules = pvlib.pvsystem.retrieve_sam("SandiaMod")
    inverters = pvlib.pvsystem.retrieve_sam("CECInverter")
    for name, other in itertools.product(MODULES, INVERTERS):
        module, inverter = modules[name], inverters[other]
        series, strings = array_size(module, inverter)
        open_circuit = series * (module["Voco"] - 35 * module["Bvoco"])  # at -10 degrees
        assert open_circuit <= inverter["Vdcmax"]
        hot = series * (module["Vmpo"] + 45 * module["Bvmpo"])  # at 70 degrees
        assert inverter["Mppt_low"] <= hot < open_circuit <= 1.001 * inverter["Mppt_high"]
        power = series * strings * module["Vmpo"] * module["Impo"]
        assert 0.9 < power / inverter["Pdco"] < 1.12
