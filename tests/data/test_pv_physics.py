"""The output of a house against pvlib's own chain of models, and against common sense."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pacpfl.data.pv import (
    INVERTERS,
    MODULES,
    House,
    array_size,
    direct_irradiance,
    house_records,
    output_of,
)
from pacpfl.data.weather import Sky, Weather, sky, synthetic_weather

pvlib = pytest.importorskip("pvlib")

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
def weather() -> Weather:
    return synthetic_weather(years=(2018, 2018), seed=1)


@pytest.fixture(scope="module")
def light(weather: Weather) -> Sky:
    return sky(weather)


def hour_of_day(weather: Weather) -> np.ndarray:
    return np.asarray(weather.local.hour + weather.local.minute / 60)


def simulate(house: House, weather: Weather, light: Sky) -> np.ndarray:
    return output_of(house, light, hour_of_day(weather), weather.temperature, weather.wind)


@pytest.mark.parametrize("number", [0, 1, 4])
def test_output_equals_pvlibs_model_chain(number: int, weather: Weather, light: Sky) -> None:
    """The same house built from pvlib's own objects: location, system and model chain."""
    house = replace(
        PLAIN,
        azimuth=(110.0, 250.0, 175.0)[number % 3],
        tilt=35.0 + number,
        module=MODULES[number],
        inverter=INVERTERS[number],
    )
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
    place = pvlib.location.Location(weather.latitude, weather.longitude, "UTC", house.altitude)
    chain = pvlib.modelchain.ModelChain(
        system, place, dc_model="sapm", ac_model="sandia", aoi_model="sapm",
        spectral_model="sapm", temperature_model="sapm", transposition_model="haydavies",
    )  # fmt: skip
    frame = pd.DataFrame(
        {
            "dni": light.beam,
            "dhi": weather.diffuse,
            "ghi": weather.beam + weather.diffuse,
            "temp_air": weather.temperature,
            "wind_speed": weather.wind,
        },
        index=weather.times,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pvlib, about pandas and about logarithms at night
        chain.run_model(frame)
    expected = np.nan_to_num(chain.results.ac.to_numpy()).clip(0) / 1000
    ours = simulate(house, weather, light)
    # Its sun is that of the house's altitude, ours that of the station's: a hair of refraction.
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-3)
    assert ours.max() > 0.6 * inverter["Paco"] / 1000


def test_the_beam_on_a_plane_at_single_times(weather: Weather, light: Sky) -> None:
    for time in ("2018-06-21 06:30", "2018-06-21 12:30", "2018-12-21 11:30", "2018-03-01 16:30"):
        i = weather.times.get_loc(pd.Timestamp(time, tz="UTC"))
        sun_zenith, sun_azimuth = np.radians(90 - light.height[i]), np.radians(light.azimuth[i])
        for tilt, azimuth in ((0.0, 180.0), (46.0, 180.0), (30.0, 90.0), (30.0, 270.0)):
            slope, facing = np.radians(tilt), np.radians(azimuth)
            cosine = np.cos(sun_zenith) * np.cos(slope) + np.sin(sun_zenith) * np.sin(
                slope
            ) * np.cos(sun_azimuth - facing)
            expected = light.beam[i] * max(cosine, 0.0)
            assert direct_irradiance(light, tilt, azimuth)[i] == pytest.approx(expected)
    flat = direct_irradiance(light, 0.0, 180.0)
    steep = light.height > 5
    np.testing.assert_allclose(flat[steep], weather.beam[steep], rtol=1e-9, atol=1e-9)


def test_east_works_in_the_morning_and_west_in_the_afternoon(weather: Weather) -> None:
    summer = weather.times.month.isin([6, 7])
    hours = hour_of_day(weather)[summer]
    noon = 12 - weather.longitude % 15 / 15  # of the sun, by the clock
    centres: dict[str, list[float]] = {}
    for panels in ("EW", "S"):
        for record in house_records(panels, 6, weather):
            output = record.output[summer]
            facing = ("east", "west")[record.kind] if panels == "EW" else "south"
            centres.setdefault(facing, []).append(float(output @ hours / output.sum() - noon))
    assert max(centres["east"]) < -0.8 < 0.8 < min(centres["west"])
    assert max(map(abs, centres["south"])) < 1.0


def test_nights_are_dark_and_nothing_is_negative(weather: Weather, light: Sky) -> None:
    output = simulate(PLAIN, weather, light)
    assert (output[light.height <= 0] == 0).all()
    assert output.min() == 0
    assert (output[light.height > 15] > 0).all()


def test_the_shadow_takes_its_share_in_its_hours_only(weather: Weather, light: Sky) -> None:
    hours = hour_of_day(weather)
    plain = simulate(PLAIN, weather, light)
    shaded = simulate(replace(PLAIN, shadow_depth=0.2), weather, light)
    inside = (hours >= 9) & (hours < 11)
    np.testing.assert_array_equal(plain[~inside], shaded[~inside])
    bright = inside & (plain > 0.5) & (plain < 0.98 * plain.max())  # not cut by the inverter
    assert bright.sum() > 100
    ratio = shaded[bright] / plain[bright]
    assert ratio.min() > 0.76 and ratio.max() < 0.9  # cooler cells win back a little
    late = replace(PLAIN, shadow_start=23.0, shadow_hours=8.0, shadow_depth=0.2)
    changed = simulate(late, weather, light) != plain
    assert changed.any() and hours[changed].max() < 7  # past midnight


def test_more_light_gives_more_until_the_inverter_limits_it(weather: Weather, light: Sky) -> None:
    outputs = [
        simulate(replace(PLAIN, irradiance_scale=scale), weather, light) for scale in (0.5, 1, 1.8)
    ]
    assert (np.diff(outputs, axis=0) >= 0).all()
    limit = pvlib.pvsystem.retrieve_sam("CECInverter")[PLAIN.inverter]["Paco"] / 1000
    assert outputs[2].max() == pytest.approx(limit)
    assert (outputs[2] == outputs[2].max()).sum() > 50


def test_hot_air_costs_and_wind_helps(weather: Weather, light: Sky) -> None:
    hours = hour_of_day(weather)
    cold, hot = (
        output_of(PLAIN, light, hours, np.full_like(hours, t), weather.wind) for t in (0, 35)
    )
    still, windy = (
        output_of(PLAIN, light, hours, weather.temperature, np.full_like(hours, w)) for w in (0, 10)
    )
    assert 0.8 < hot.sum() / cold.sum() < 0.95
    assert 1.01 < windy.sum() / still.sum() < 1.2


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
    for name in MODULES:
        for other in INVERTERS:
            module, inverter = modules[name], inverters[other]
            series, strings = array_size(module, inverter)
            open_circuit = series * (module["Voco"] - 35 * module["Bvoco"])  # at -10 degrees
            assert open_circuit <= inverter["Vdcmax"]
            hot = series * (module["Vmpo"] + 45 * module["Bvmpo"])  # at 70 degrees
            assert inverter["Mppt_low"] <= hot < open_circuit <= 1.001 * inverter["Mppt_high"]
            power = series * strings * module["Vmpo"] * module["Impo"]
            assert 0.9 < power / inverter["Pdco"] < 1.12
