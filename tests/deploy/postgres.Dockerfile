FROM localhost/services
COPY postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
RUN chmod 755 /usr/local/bin/docker-entrypoint.sh && mkdir -p /docker-entrypoint-initdb.d /var/lib/postgresql/data
ENTRYPOINT ["docker-entrypoint.sh"]
