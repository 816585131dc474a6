#!/bin/sh
# A single-node HDFS for the tests: DIR/lib gets the jars of Hadoop 2.7's NameNode and DataNode. They travel inside
# PySpark 2.4's source package (220 MB, fetched once, not installed); five small ones come from Debian's packages.
# Needs a Java runtime to run, apt-get and dpkg to build; without them there is no HDFS test, and the tests say so.
# usage: hadoop.sh DIR PYTHON
set -eu
mkdir -p "$1"
dir=$(cd "$1" && pwd) python=$2
test -e "$dir/lib/.complete" && exit 0
for tool in java apt-get dpkg; do
    command -v $tool > /dev/null || { echo "no $tool: the HDFS tests will be skipped"; exit 0; }
done
rm -rf "$dir" && mkdir -p "$dir/lib" "$dir/debs"
echo "Fetching Hadoop into $dir"
"$python" -m venv "$dir/build"
"$dir/build/bin/pip" install --quiet --disable-pip-version-check setuptools wheel
"$dir/build/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-build-isolation -d "$dir" pyspark==2.4.8
jars="hadoop-annotations hadoop-auth hadoop-common hadoop-hdfs commons-cli commons-codec commons-collections
commons-configuration commons-io commons-lang-2 commons-logging commons-net guava-14 htrace-core httpclient httpcore
jackson-core-asl jackson-mapper-asl javax.servlet-api jaxb-api jetty-6 jetty-util jsr305 leveldbjni-all log4j-1
netty-3 netty-all protobuf-java slf4j-api slf4j-log4j12 xercesImpl xmlenc"
for jar in $jars; do
    echo "*/deps/jars/$jar*.jar"
done > "$dir/wanted"
tar xzf "$dir/pyspark-2.4.8.tar.gz" -C "$dir/lib" --strip-components=3 --wildcards -T "$dir/wanted"
cd "$dir/debs"
{ apt-get download libjersey1-core-java libjersey1-server-java libjersey1-servlet-java libjsr311-api-java libasm-java \
    libcommons-daemon-java || { apt-get update && apt-get download libjersey1-core-java libjersey1-server-java \
    libjersey1-servlet-java libjsr311-api-java libasm-java libcommons-daemon-java; }; } > log 2>&1 || {
    echo "Debian's packages cannot be had: the HDFS tests will be skipped"; exit 0; }
for deb in ./*.deb; do dpkg -x "$deb" files; done
cd files/usr/share/java
cp -L asm.jar jersey1-core.jar jersey1-server.jar jersey1-servlet.jar jsr311-api.jar commons-daemon.jar "$OLDPWD/../lib/"
cd "$OLDPWD/.." && rm -rf build debs wanted pyspark-2.4.8.tar.gz && touch lib/.complete
