-- Departures in bad weather: how late, per airport and three hours.
INSERT INTO delays
SELECT
  window.start AS window_start,
  window.end AS window_end,
  origin,
  count(*) AS departures,
  avg(dep_delay) AS mean_delay,
  max(dep_delay) AS worst_delay
FROM (
  SELECT f.ts AS ts, f.origin AS origin, f.dep_delay AS dep_delay
  FROM flights f
  JOIN weather w
    ON f.origin = w.origin AND f.ts BETWEEN w.ts AND w.ts + INTERVAL 59 MINUTES
  WHERE w.visib < 5 OR w.wind_speed > 15 OR w.precip > 0
)
GROUP BY window(ts, '3 hours'), origin
