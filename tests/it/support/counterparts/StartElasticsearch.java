package sun.management;

import java.lang.reflect.Field;

/** Starts an Elasticsearch of 2015, which asks a question that Java has refused to answer since version 9. */
public final class StartElasticsearch extends RuntimeImpl {
    private StartElasticsearch(VMManagement machine) {
        super(machine);
    }

    @Override
    public String getBootClassPath() {
        return "";
    }

    public static void main(String[] args) throws Exception {
        Field machine = ManagementFactoryHelper.class.getDeclaredField("jvm");
        machine.setAccessible(true);
        Field bean = ManagementFactoryHelper.class.getDeclaredField("runtimeMBean");
        bean.setAccessible(true);
        bean.set(null, new StartElasticsearch((VMManagement) machine.get(null)));
        ClassLoader.getSystemClassLoader()
                .loadClass("org.elasticsearch.bootstrap.Elasticsearch")
                .getMethod("main", String[].class)
                .invoke(null, (Object) args);
    }
}
