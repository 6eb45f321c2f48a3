"""Local files without a process for each of them.

Hadoop sets the permissions of each file and folder that it makes by running ``chmod``, unless it has a native library,
which comes with no distribution of PySpark. Every micro-batch makes some dozen files (offsets, commits, state), so most
of a small batch was spent starting processes. Java can set permissions itself. The class that does so is compiled by
the compiler that Spark compiles its plans with; no other is needed where sbon is built or runs.

What RocksDB keeps in files that never change goes into the checkpoint, and comes from there, as a hard link instead of
a copy: however much state there is, it is on the disk once, and starting does not read it.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

#: Of Spark's two ways to files the one that asks for the class below.
SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
_CLASS = "sbon.LocalFiles"
_SOURCE = """
package sbon;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    public void copyFromLocalFile(boolean move, Path from, Path to) throws IOException {
        if (move || !link(from, to)) super.copyFromLocalFile(move, from, to);
    }

    public void copyToLocalFile(boolean move, Path from, Path to) throws IOException {
        if (move || !link(from, to)) super.copyToLocalFile(move, from, to);
    }

    private boolean link(Path from, Path to) throws IOException {
        java.nio.file.Path target = pathToFile(to).toPath();
        try {
            Files.deleteIfExists(target);
            Files.createDirectories(target.getParent());
            Files.createLink(target, pathToFile(from).toPath());
            return true;
        } catch (java.nio.file.FileSystemException cannot) {
            return false;
        }
    }

    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            String symbols = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
                + permission.getOtherAction().SYMBOL;
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols));
        }
    }
}
"""


def use_plain_files(spark: SparkSession) -> None:
    """From now on Spark's local files are made in this way."""
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    configuration = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    configuration.setClassLoader(compiler.getClassLoader())
    configuration.set("fs.file.impl", _CLASS)
    file_system = jvm.org.apache.hadoop.fs.FileSystem
    # Hadoop keeps one object for each kind of file system. Nobody has a file open yet.
    file_system.closeAll()
    file_system.get(jvm.java.net.URI("file:///"), configuration)
