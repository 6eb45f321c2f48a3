package sbon;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Collections;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.RangeKeyScanStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark's state in RocksDB, with an index of an aggregate's windows by their end. Of all other operators' state there is
 * none, and the store is Spark's.
 *
 * <p>For each batch an aggregate asks for all that it keeps, and removes what the watermark has closed. Here it is given
 * the windows that end first, and no more of them once it has left one where it was: whatever ends later is not closed
 * either. (Compiled by Janino, which has no generics: see window_store.py.)
 */
public class WindowStore extends RocksDBStateStoreProvider {
    private static final String ROWS = "default";
    private static final String INDEX = "byEnd";

    /** Where the window is in a key, if there is one; and of how many fields. */
    private int window = -1;
    private int fields;

    public void init(StateStoreId id, StructType keys, StructType values, KeyStateEncoderSpec encoding, boolean families,
            StateStoreConf conf, Configuration hadoop, boolean multiple, Option schemas) {
        StructField[] all = keys.fields();
        fields = all.length;
        for (int at = 0; at < fields; at++) {
            // Spark marks the event time of an aggregate's keys so; a window is start and end.
            if (all[at].metadata().contains("spark.watermarkDelayMs") && all[at].dataType() instanceof StructType) {
                window = at;
            }
        }
        super.init(id, keys, values, encoding, families || window >= 0, conf, hadoop, multiple, schemas);
    }

    public StateStore getStore(long version, Option unique, boolean snapshot, boolean empty) {
        return indexed(super.getStore(version, unique, snapshot, empty));
    }

    public StateStore upgradeReadStoreToWriteStore(ReadStateStore read, long version, Option unique, boolean snapshot) {
        return indexed(super.upgradeReadStoreToWriteStore(read, version, unique, snapshot));
    }

    private StateStore indexed(StateStore store) {
        if (window < 0) return store;
        StructType key = new StructType().add("end", DataTypes.LongType, false).add("key", DataTypes.BinaryType, false);
        StructType nothing = new StructType().add("nothing", DataTypes.BooleanType, false);
        Object first = CollectionConverters.asScala(Collections.singletonList((Object) Integer.valueOf(0))).toSeq();
        KeyStateEncoderSpec byEnd = new RangeKeyScanStateEncoderSpec(key, (scala.collection.immutable.Seq) first);
        store.createColFamilyIfAbsent(INDEX, key, nothing, byEnd, false, false);
        Class[] interfaces = new Class[] {StateStore.class};
        Indexed handler = new Indexed(store, window, fields);
        return (StateStore) Proxy.newProxyInstance(StateStore.class.getClassLoader(), interfaces, handler);
    }

    /** One version of the store: what is written to it is written to the index, too. */
    public static class Indexed implements InvocationHandler {
        private final StateStore store;
        private final int window;
        private final int fields;
        private final UnsafeRowWriter entry = new UnsafeRowWriter(2);
        private final UnsafeRow nothing;
        private boolean removed;

        Indexed(StateStore store, int window, int fields) {
            this.store = store;
            this.window = window;
            this.fields = fields;
            UnsafeRowWriter one = new UnsafeRowWriter(1);
            one.reset();
            one.zeroOutNullBytes();
            one.write(0, false);
            nothing = one.getRow();
        }

        public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
            if (arguments != null && ROWS.equals(arguments[arguments.length - 1])) {
                String name = method.getName();
                if (name.equals("put")) return put((UnsafeRow) arguments[0], (UnsafeRow) arguments[1]);
                if (name.equals("remove")) return remove((UnsafeRow) arguments[0]);
                if (name.equals("iterator")) {
                    StateStoreIterator entries = store.iterator(INDEX);
                    return new StateStoreIterator(new FirstToEnd(this, entries), new Close(entries));
                }
            }
            try {
                return method.invoke(store, arguments);
            } catch (InvocationTargetException error) {
                throw error.getCause();
            }
        }

        private Object put(UnsafeRow key, UnsafeRow value) {
            store.put(key, value, ROWS);
            store.put(entry(key), nothing, INDEX);
            return null;
        }

        private Object remove(UnsafeRow key) {
            store.remove(key, ROWS);
            store.remove(entry(key), INDEX);
            removed = true;
            return null;
        }

        private UnsafeRow entry(UnsafeRow key) {
            entry.reset();
            entry.zeroOutNullBytes();
            entry.write(0, key.getStruct(window, 2).getLong(1));
            entry.write(1, key.getBytes());
            return entry.getRow();
        }
    }

    /** Keys and values in the order in which their windows end, until one was not removed. */
    public static class FirstToEnd extends scala.collection.AbstractIterator {
        private final Indexed indexed;
        private final StateStoreIterator entries;
        private boolean hasBegun;

        FirstToEnd(Indexed indexed, StateStoreIterator entries) {
            this.indexed = indexed;
            this.entries = entries;
        }

        public boolean hasNext() {
            return (!hasBegun || indexed.removed) && entries.hasNext();
        }

        public Object next() {
            byte[] bytes = ((UnsafeRowPair) entries.next()).key().getBinary(1);
            UnsafeRow key = new UnsafeRow(indexed.fields);
            key.pointTo(bytes, bytes.length);
            hasBegun = true;
            indexed.removed = false;
            return new UnsafeRowPair(key, indexed.store.get(key, ROWS));
        }
    }

    /** For Scala. */
    public static class Close extends scala.runtime.AbstractFunction0 {
        private final StateStoreIterator entries;

        Close(StateStoreIterator entries) {
            this.entries = entries;
        }

        public Object apply() {
            entries.close();
            return scala.runtime.BoxedUnit.UNIT;
        }
    }
}
