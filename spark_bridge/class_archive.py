"""The archive of Java's classes: with it an engine starts faster, and its first batches take less of a processor.

Spark loads some 20,000 classes, reads, checks and links each of them anew at every start. Java can keep them in a file
as they are once that is done, and map it (JEP 310, 350; from Java 25 on with what was learned about their methods, too:
JEP 483, 515). The file is made once for an environment (:mod:`spark_bridge.class_training`). It is for one build of
Java and one set of jars; Java itself leaves aside one that does not fit.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark

from spark_bridge.java_runtime import Java

#: From this version on an archive has profiles of methods besides the classes.
_PROFILES_SINCE = 25


def archive_file(java: Java) -> Path:
    """Where the archive of this environment for ``java`` is, or would be."""
    folder = Path(sys.prefix) / "var" / "sbon"
    return folder / f"classes-spark-{pyspark.__version__}-java-{java.major_version}"


def reading_options(java: Java) -> tuple[str, ...]:
    """What has Java start from the archive; nothing if there is none."""
    archive = archive_file(java)
    if not archive.exists():
        return ()
    if java.major_version >= _PROFILES_SINCE:
        return (f"-XX:AOTCache={archive}", "-Xlog:aot*=off", "-Xlog:cds*=off")
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off")


def writing_options(java: Java, archive: Path) -> tuple[str, ...]:
    """What has Java write ``archive`` when it ends, without a word about what it leaves out."""
    kind = "AOTCacheOutput" if java.major_version >= _PROFILES_SINCE else "ArchiveClassesAtExit"
    return (f"-XX:{kind}={archive}", "-Xlog:disable")
